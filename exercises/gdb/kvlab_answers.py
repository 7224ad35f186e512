"""Reads and changes a student's answers.toml: one value at a time, so that
everything else in it stays as it is, comments too."""
import os
import re
import stat
import tempfile

from kvlab_values import Mistake

LARGEST = 1_000_000  # bytes of a file that is read


def read(path):
    """The text of the file."""
    # A pipe would be waited for, a device may not end.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Mistake("%s is not a regular file" % path)
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Mistake("%s has more than %d bytes" % (path, LARGEST))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Mistake("%s, line %d: this is not UTF-8; save the file as UTF-8"
                      % (path, content.count(b"\n", 0, error.start) + 1))


def write(path, text):
    """Replaces the file at once, or leaves it as it is."""
    path = os.path.realpath(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    # root may write to what is read-only, but should not.
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise Mistake("%s is write-protected" % path)
    temporary = None
    try:
        fd, temporary = tempfile.mkstemp(prefix=".answers.", suffix=".new",
                                         dir=os.path.dirname(path))
        with open(fd, "wb") as file:
            file.write(text.encode("utf-8"))
            os.fchmod(fd, mode)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise Mistake("%s cannot be written: %s" % (path, error.strerror))
    finally:
        if temporary is not None:
            os.unlink(temporary)


# --- TOML --------------------------------------------------------------------

def _wrong(text, at, problem):
    return Mistake("answers.toml, line %d: %s; put that right first" % (
        text.count("\n", 0, at) + 1, problem))


def _string_end(text, at):
    """Where the string that begins at text[at] ends; an answer's never goes
    over the end of its line, not even between three quotes."""
    quote = text[at]
    closing = quote * 3 if text.startswith(quote * 3, at) else quote
    i = at + len(closing)
    while i < len(text) and text[i] not in "\r\n":
        if (text[i] == "\\" and quote == '"' and
                text[i + 1:i + 2] not in "\r\n"):
            i += 2
        elif text.startswith(closing, i):
            i += len(closing)
            # Of five quotes the first two belong to the string.
            while len(closing) == 3 and text[i:i + 1] == quote:
                i += 1
            return i
        else:
            i += 1
    raise _wrong(text, at, "the text has no %s at its end" % closing)


def _after_space(text, at):
    """The first place from `at` on, in a list, that is no space or comment."""
    return re.compile(r"(?:\s|#[^\n]*)*").match(text, at).end()


def _list_end(text, at):
    """Where the list that begins at text[at] ends. Between its elements are
    commas; so one without its ] does not reach into the next answer's."""
    i = _after_space(text, at + 1)
    while text[i:i + 1] not in ("]", ""):
        if text[i] in "\"'":
            i = _string_end(text, i)
        elif text[i] == "[":
            raise _wrong(text, i, "a list in a list is no answer")
        else:
            i = re.compile(r"[\w.+:-]*").match(text, i).end()
        i = _after_space(text, i)
        if text[i:i + 1] == ",":
            i = _after_space(text, i + 1)
        elif text[i:i + 1] != "]":
            break
    if text[i:i + 1] != "]":
        raise _wrong(text, at, "the list has no ] at its end")
    return i + 1


def value_end(text, at):
    """Where the value that begins at text[at] ends."""
    if text[at:at + 1] in ('"', "'"):
        end = _string_end(text, at)
    elif text[at:at + 1] == "[":
        end = _list_end(text, at)
    else:
        end = re.compile(r"[^#\r\n]*").match(text, at).end()
        return at + len(text[at:end].rstrip())
    if not re.compile(r"[ \t]*(#|\r?\n|\r?$)").match(text, end):
        raise _wrong(text, at, "there is more after the end of the value")
    return end


ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def _unquoted(text):
    """A key as it is meant."""
    if text[:1] == '"':
        return re.sub(
            r"\\(?:u([0-9A-Fa-f]{4})|(.))",
            lambda found: (chr(int(found.group(1), 16)) if found.group(1) else
                           ESCAPES.get(found.group(2), found.group(2))),
            text[1:-1])
    return text.strip("'")


KEY = re.compile(r"""[ \t]*([A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
                 r"[ \t]*=[ \t]*")


def places(text):
    """{key: (start, end) of its value}. Mistake where it cannot be told."""
    result = {}
    at = len("\ufeff") if text.startswith("\ufeff") else 0
    while at < len(text):
        found = KEY.match(text, at)
        if found:
            end = value_end(text, found.end())
            result[_unquoted(found.group(1))] = (found.end(), end)
            at = end
        at = (text + "\n").index("\n", at) + 1
    return result


def quoted(word):
    """A string of TOML."""
    word = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"%s"' % re.sub("[\x00-\x1f\x7f]",
                           lambda found: "\\u%04X" % ord(found.group()), word)


def integer(value):
    if not -2**63 <= value < 2**63:
        raise Mistake("%d is too large for an answer: whole numbers go from "
                      "-2^63 to 2^63 - 1" % value)
    return str(value)
