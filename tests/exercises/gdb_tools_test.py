"""Runs inside gdb with one program: every command of exercises/gdb on it.

gdb_tools_test.sh starts it. A check that fails does not end the run.
"""
import os
import re
import resource
import signal

import gdb

failures = []
count = 0


def output(command):
    return gdb.execute(command, to_string=True).strip()


def judge(command, good, wanted, found):
    global count
    count += 1
    if not good:
        failures.append(command)
        print("FAILED: %s\n  wanted: %s\n  found:  %s" % (
            command, wanted, found.replace("\n", "\n          ")))


def check(command, pattern):
    """What the command prints matches the whole pattern; ~ is any number."""
    number = r"-?[0-9][0-9.e+-]*"
    parts = [re.escape(p) for p in pattern.split("~")]
    try:
        found = output(command)
    except gdb.error as error:
        found = "error: %s" % error
    judge(command, re.fullmatch(number.join(parts).replace(r"\*", ".*"), found,
                                re.DOTALL), pattern, found)


def refuse(command, message):
    """The command ends with this one line."""
    try:
        found = "no error, but: " + output(command)
    except gdb.error as error:
        found = str(error)
    judge(command, found == message, message, found)


def lines(command, how_many):
    try:
        found = output(command)
    except gdb.error as error:
        found = "error: %s" % error
    judge(command, len(found.splitlines()) == how_many,
          "%d lines" % how_many, found)


def go(command="continue"):
    output(command)


def answers():
    with open(os.environ["KVLAB_EXERCISE"] + "/answers.toml") as file:
        return file.read()


def file_is(text):
    found = answers()
    judge("answers.toml", found == text, text, found)


NOT_RUNNING = ("the program is not running; set a breakpoint (stop-at NAME), "
               "then: run")


def before_the_run():
    for command in ("tile", "row K 3", "softmax-state", "selection"):
        refuse(command, NOT_RUNNING)
    check("expect 6 * 7 == 42", "yes: 6 * 7 == 42 (left is 42, right is 42)")
    check("expect 6 * 7 == 41", "no: left is 42, right is 41")


    for command in ("output $exp()", "output $exp(1, 2)"):
        refuse(command, "$exp takes one number: $exp(x)")
    check("output $exp(1) > 2.718281 && $exp(1) < 2.718282", "true")
    refuse("output $exp(1000)",
           "$exp(1000) is larger than any double")


def write_answers(text):
    with open(os.environ["KVLAB_EXERCISE"] + "/answers.toml", "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def unreadable_answers():
    """What cannot be told where it ends is named, and stays as it is."""
    for value, problem in (
            ("[24", "the list has no ] at its end"),
            ("[24,", "the list has no ] at its end"),
            ("[24  # ]", "the list has no ] at its end"),
            ('["24', 'the text has no " at its end'),
            ('"24', 'the text has no " at its end'),
            ('"24\\', 'the text has no " at its end'),
            ("'24", "the text has no ' at its end"),
            ('"""24', 'the text has no """ at its end'),
            ("'''", "the text has no ''' at its end"),
            ('"24" 5"', "there is more after the end of the value"),
            ("[[1], 2]", "a list in a list is no answer")):
        for after in ('b = ""\n', 'b = [1, "x"]\n', 'b = """x"""\n',
                      '"b" = 3\n', ""):
            text = "# One.\na = %s\n\n# Two, [3].\n%s" % (value, after)
            write_answers(text)
            for command in ("answer a 3", "answer b 3"):
                refuse(command, "answers.toml, line 2: %s; put that right "
                       "first" % problem)
            file_is(text)
    # Other ways to write it that are right.
    for text, wanted in (
            ('a = """x\\""""" # y\nb = 1\n', "a = 3 # y\nb = 1\n"),
            ("a = [1, # [\n 'x]', ] # y\r\nb = 1", "a = 3 # y\r\nb = 1"),
            ('\ufeff"a" = ""\n', '\ufeff"a" = 3\n'),
            ("'a'=\"\"", "'a'=3"), ('"\\u0061" = 1', '"\\u0061" = 3'),
            ("a =\nb = 1", "a =3\nb = 1")):
        write_answers(text)
        for value in ("211,502", "0, 1", "(3, 4)"):
            refuse("answer a " + value, "a list is written [0, 1], and a "
                   "number with a point: 0.5")
        check("answer a 3", "a = 3")
        with open(os.environ["KVLAB_EXERCISE"] + "/answers.toml",
                  newline="", encoding="utf-8") as file:
            found = file.read()
        judge("answers.toml", found == wanted, wanted, found)


def answers_file():
    """What kind of file answers.toml is, and stays."""
    folder = os.environ["KVLAB_EXERCISE"]
    path = folder + "/answers.toml"

    def only(*names):
        left = sorted(os.listdir(folder))
        judge("no other file", left == sorted(names), str(names), str(left))

    write_answers(b"# \xc3\xa9\na = 1 # \xe9\n")
    refuse("answer a 3", path + ", line 2: this is not UTF-8; save the file "
           "as UTF-8")
    write_answers("a = 1 #" + "x" * 1000000)
    refuse("answer a 3", path + " has more than 1000000 bytes")
    os.remove(path)
    os.mkfifo(path)
    refuse("answer a 3", path + " is not a regular file")
    os.remove(path)
    os.symlink("/dev/zero", path)
    refuse("answer a 3", path + " is not a regular file")
    os.remove(path)

    # A link stays one; a file beside it is the student's.
    for name, text in (("real", "a = 1\n"), ("answers.toml.new", "mine")):
        with open(folder + "/" + name, "w") as file:
            file.write(text)
    os.symlink("real", path)
    os.chmod(path, 0o640)
    check("answer a 3", "a = 3")
    file_is("a = 3\n")
    only("answers.toml", "answers.toml.new", "real")
    with open(folder + "/answers.toml.new") as file:
        judge("answers.toml.new", file.read() == "mine", "mine", "another")
    mode = os.stat(path).st_mode & 0o777
    judge("a link, mode 640", os.path.islink(path) and mode == 0o640,
          "a link, 0o640", oct(mode))
    os.chmod(path, 0o444)
    refuse("answer a 4", folder + "/real is write-protected")
    file_is("a = 3\n")
    os.remove(folder + "/answers.toml.new")
    os.remove(folder + "/real")
    os.remove(path)

    # No place for what is written.
    write_answers("a = 1\n")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    refused = "no error"
    try:
        output("answer a 3")
    except gdb.error as error:
        refused = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
    wanted = path + " cannot be written: File too large"
    judge("answer without place", refused == wanted, wanted, refused)
    file_is("a = 1\n")
    only("answers.toml")
    write_answers('steps = ""\nlast = ""\n')


def answer_command():
    start = ('# Counted from 0.\nsteps = ""  # a number\n'
             'names = [  # three\n  "a", "]",\n  "b"\n]\r\nlast = \'\'')
    with open(os.environ["KVLAB_EXERCISE"] + "/answers.toml", "w",
              newline="") as file:
        file.write(start)
    known = "the names are: steps, names, last"
    refuse("answer", "usage: answer NAME VALUE; " + known)
    refuse("answer stepz 3", "there is no answer stepz; " + known)
    refuse("answer steps", "usage: answer NAME VALUE")
    refuse("answer names [1,,2]", "the list has an empty place")
    refuse("answer names [1, 2", "the list has no ] at its end")
    refuse("answer names [[1,2],3]", "a list in a list is no answer; its "
           "elements are numbers or words")
    refuse("answer steps 18446744073709551615", "18446744073709551615 is too "
           "large for an answer: whole numbers go from -2^63 to 2^63 - 1")
    refuse("answer steps nosuch + 1", "nosuch + 1 is neither a number nor a "
           'word here: No symbol "nosuch" in current context.')
    file_is(start.replace("\r", ""))
    go("set $count = 41")
    check("answer steps $count + 1", "steps = 42")
    check("answer last yes", 'last = "yes"')
    check('answer names [score, "two words", 7]',
          'names = ["score", "two words", 7]')
    file_is('# Counted from 0.\nsteps = 42  # a number\n'
            'names = ["score", "two words", 7]\nlast = "yes"')
    check("answer last 1.0 / 3", "last = 0.3333333333333333")
    check("answer last 2 > 1", 'last = "yes"')
    check("answer last -9223372036854775807 - 1", "last = -9223372036854775808")
    check('answer last "a\x01b\x7f\tc"', r'last = "a\u0001b\u007F\u0009c"')
    unreadable_answers()
    answers_file()
    left = sorted(os.listdir(os.environ["KVLAB_EXERCISE"]))
    judge("no other file", left == ["answers.toml"], "answers.toml alone",
          str(left))
    folder = os.environ.pop("KVLAB_EXERCISE")
    refuse("answer steps 3", "no exercise is open; start gdb with: "
           "./lab exercises debug NN")
    os.environ["KVLAB_EXERCISE"] = folder + "/nowhere"
    refuse("answer steps 3", folder +
           "/nowhere/answers.toml: No such file or directory")
    os.environ["KVLAB_EXERCISE"] = folder


def index_of_any_type():
    """heads[1], and containers whose [] the program has inlined."""
    for one in ("1", "1U", "1L", "1UL", "(short)1"):
        check("p heads[%s].id" % one, "$~ = {layer 0, head 1, position 128}")
        check("p heads[0].tile[%s]" % one, "$~ = ~")
        check("p heads[0].softmax.acc[%s]" % one, "$~ = ~")


def online_softmax():
    before_the_run()
    answer_command()
    refuse("stop-at nosuch", "no marker [nosuch] in this program; it has: "
           "normalise, quantise_query, rescale, score, weighted_values, "
           "weights")
    refuse("stop-at three_pass.cpp:score", "no marker [score] in "
           "three_pass.cpp in this program; it has: normalise, "
           "quantise_query, rescale, score, weighted_values, weights")
    refuse("stop-at", "usage: stop-at [FILE:]NAME [if CONDITION]")
    refuse("stop-at score if", "usage: stop-at [FILE:]NAME [if CONDITION]")
    refuse("stop-at score if nosuch == 3", "no breakpoint is set, the "
           "condition is not understood there: "
           'No symbol "nosuch" in current context.')
    lines("info breakpoints", 1)
    check("complete stop-at resc", "stop-at rescale")
    check("stop-at score if t == 2",
          "Breakpoint 2 at 0x*: file *day09_kv_q8/online_softmax.cpp, line ~.")
    check("stop-at common/attention/online_softmax.cpp:[rescale] if m > M",
          "Breakpoint 3 at 0x*: file *attention/online_softmax.cpp, line ~.")
    go("disable 3")
    go("run")
    check("frame", "#0*OnlineSoftmaxStage::Attend*dot_keys(*")
    check("p kv", "$~ = *{f32, 129 tokens, 128 elements a row, stride 128}")
    check("p input", "$~ = *{layer 0, heads 0 to 1, position 128, kv = {f32, "
          "129 tokens, *}}")
    check("p heads[1].id", "$~ = {layer 0, head 1, position 128}")
    check("p heads.size()", "$~ = 2")
    index_of_any_type()
    check("p heads[0].softmax", "$~ = {M = ~, S = ~, acc [128] {~, ~, ~, ~, "
          "...}}")
    check("expect t == 2 && tokens == 1",
          "yes: t == 2 && tokens == 1 is 1")
    check("expect n <= 128", "no: left is 129, right is 128")
    for change in ("t = 41", "t += 41", "t <<= 1", "t >>= 1", "t++", "--t"):
        refused = " would change the program; to compare, write =="
        refuse("expect " + change, change + refused)
        refuse("expect (%s) == 41" % change, "(%s)" % change + refused)
        refuse("expect 41 <= (%s)" % change, "(%s)" % change + refused)
        refuse("row K " + change, change + refused)
        refuse("answer last " + change, "%s is neither a number nor a word "
               "here: %s%s" % (change, change, refused))
    refuse("expect t++ == 41", "t++" + refused)
    refuse("expect t == 2 within t++", "t++" + refused)
    refuse("expect t within 1", "usage: expect EXPRESSION [within R]")
    check("expect '=' == 61", "yes: *")
    check("expect t >= 2 && t <= 2 && t != 3 && -t == - -t - 4", "yes: *")
    check("expect t == 2", "yes: t == 2 (left is 2, right is 2)")
    refuse("expect", "usage: expect EXPRESSION [within R]")
    refuse("expect nosuch == 3", 'No symbol "nosuch" in current context.')
    refuse("expect heads == 3", "%s is not a number" %
           gdb.parse_and_eval("heads").type)
    check("tile", "token 2 of 129\n  head 0: no scores yet\n"
          "  head 1: no scores yet")
    check("softmax-state", "head 0   M = ~*S = ~\n  head 1   M = ~*S = ~")
    # What gdb printed, typed in again, is the number.
    M = output("output heads[0].softmax.M")
    check("expect heads[0].softmax.M == " + M, "yes: *")
    check("expect heads[0].softmax.M == %s * 1.0001" % M, "no: *")
    check("expect heads[0].softmax.M == %s * 1.0001 within 1e-3" % M,
          "yes: *")
    check("answer last heads[0].softmax.M", "last = " + M)
    lines("row K 3", 17)
    check("row V t", "V[2]: 128 elements\n*")
    first = gdb.parse_and_eval("kv.keys[3 * kv.stride + 9]")
    check("row K 3", "*\n      8: * %.6g *" % float(first))
    refuse("row K 129", "token 129 is not in the cache: it holds 129, 0 to "
           "128")
    refuse("row K -1", "token -1 is not in the cache: it holds 129, 0 to 128")
    refuse("row K 2.5", "the token is 2.5, but must be a whole number")
    refuse("row X 3", "usage: row K|V TOKEN")
    refuse("row K", "usage: row K|V TOKEN")
    refuse("row K nosuch", 'No symbol "nosuch" in current context.')
    refuse("q8 K 3", "the cache of this frame is f32, it has no codes; see "
           "its elements with: row K 3")
    refuse("selection", "no blocks are selected in this frame; stop in stage "
           "4 first")
    go("next")
    check("tile", "token 2 of 129\n  head 0: scores\n      2: *~\n"
          "  head 1: scores\n      2: *~")
    go("enable 3")
    go()
    check("frame", "#0*OnlineSoftmax::Weigh*")
    check("softmax-state", "head ~ * M = ~*S = ~*<- this one*")
    check("row K 3", "K[3]: 128 elements\n*")
    check("tile", "token ~ of 129\n*")
    go("up 30")
    refuse("tile", "there is no tile in this frame; stop in a stage first: "
           "stop-at score")
    refuse("row K 3", "there is no cache in this frame; stop in a stage "
           "first: stop-at score")
    refuse("softmax-state", "there is no softmax in this frame; stop in a "
           "stage first: stop-at weights")


def three_pass():
    go("stop-at scores")
    go("stop-at softmax")
    go("stop-at weighted_values")
    go("run")
    refuse("tile", "no tile is in work at this line; go into a loop over the "
           "tokens with: next")
    check("softmax-state", "head 0   M = not kept*S = 0\n*")
    go()
    go("next 3")
    check("softmax-state", "head 0   M = ~*S = 0\n  head 1   M = not kept*")
    go()
    check("softmax-state", "head 0   M = not kept*S = 1*")
    go("next 2")
    check("tile", "tokens 0 to 31 of 129\n  head 0: weights\n      0: *"
          "  head 1: weights\n      0: *")
    lines("tile", 11)


def q8_single_pass():
    go("stop-at quantise_q")
    go("stop-at weights")
    go("stop-at weighted_values")
    go("run")
    refuse("softmax-state", "no head is set up yet in this frame; stop later: "
           "stop-at score")
    lines("q8 K 7", 9)
    check("q8 K 7", "K[7]: scale ~, 128 codes\n      0: *")
    code = int(gdb.parse_and_eval("kv.value_codes[128 * kv.stride + 16]"))
    check("q8 V 128", "*\n     16: *%d *" % code)
    check("row V 128", "V[128]: 128 elements, each a code times the scale ~\n"
          "*")
    scale = float(gdb.parse_and_eval("kv.value_scales[128]"))
    check("row V 128", "*\n     16: *%.6g *" % (code * scale))
    go()
    check("tile", "tokens 0 to 31 of 129\n  head 0: scores\n*"
          "  head 1: scores\n*")
    check("softmax-state", "head 0   M = ~*S = 0   <- this one\n"
          "  head 1   no token yet")
    go()
    check("tile", "tokens 0 to 31 of 129\n  head 0: weights\n*"
          "  head 1: scores\n*")
    go()
    check("tile", "tokens 0 to 31 of 129\n  head 0: weights\n*"
          "  head 1: weights\n*")
    check("p heads.size()", "$~ = 2")
    index_of_any_type()
    check("p heads[1].softmax.acc", "$~ = [128] = {~*...}")
    check("p heads[0].q", "$~ = {codes [128] {~, ~, ~, ~, ~, ~, ~, ~, ...}, "
          "scales [4] {~, ~, ~, ~}}")


def two_pass():
    go("stop-at maximum")
    go("stop-at weights_and_values")
    go("run")
    go("next 4")
    check("tile", "tokens 0 to 31 of 129\n  head 0: scores\n*")
    go()
    check("softmax-state", "head 0   M = ~*S = 0\n  head 1   M = ~*S = 0")
    check("q8 K 0", "K[0]: scale *")


def sparse_topk():
    for marker in ("probe", "reserve", "fill", "recency", "softmax"):
        check("stop-at " + marker, "Breakpoint ~ at *")
    go("run")
    refuse("selection", "no head selects at this line; stop later: stop-at "
           "reserve")
    go()
    check("selection", "2 of 5 blocks, so far\n*block*probe*rank*importance"
          "*rank*reason\n      0 *~ *~ *~ *~  -\n*")
    lines("selection", 7)
    go()
    check("selection", "2 of 5 blocks, so far\n*  importance\n*")
    go()
    go("up")
    check("selection", "2 of 5 blocks, not chosen yet\n*")
    go("down")
    go("next 5")
    check("selection", "2 of 5 blocks\n*")
    go()
    check("frame", "#0*AttendOver*")
    check("selection", "2 of 5 blocks\n*lower_probe*")
    judge("who is taken", sum(
        line.endswith((" importance", " probe", " recency"))
        for line in output("selection").splitlines()) == 2, "two blocks",
        output("selection"))
    refuse("softmax-state", "M is not computed yet at this line; go on with: "
           "next")
    go("next 2")
    check("softmax-state", "here     M = ~*S = 0")
    go("up")
    check("p selection", "$~ = {2 of 5 blocks: ~ *, ~ *}")
    go("stop-at weighted_values")
    go()
    go("next 3")
    check("tile", "tokens ~ to ~ of 129\n  weights\n*")


def student():
    """A plain program with kv, M and S."""
    go("break Report")
    go("run")
    check("row K 1", "K[1]: 16 elements\n      0: *16*17*18*")
    go("up")
    check("row V 2", "V[2]: 16 elements\n      0: *-32*-33*")
    check("softmax-state", "here     M = 3.5            S = 1.25")
    refuse("row K 3", "token 3 is not in the cache: it holds 3, 0 to 2")
    refuse("tile", "there is no tile in this frame; stop in a stage first")


{"day09_online_softmax": online_softmax, "day09_three_pass": three_pass,
 "day09_q8_single_pass": q8_single_pass, "day09_two_pass": two_pass,
 "day10_sparse_topk": sparse_topk, "gdb_tools_student": student}[
     os.path.basename(gdb.current_progspace().filename)]()
if gdb.selected_inferior().pid:
    gdb.execute("kill", to_string=True)
print("%d checks, %d failed" % (count, len(failures)))
# The exit code of gdb says nothing of a script.
with open(os.environ["KVLAB_RESULT"], "w") as result:
    result.write("%d" % len(failures))
