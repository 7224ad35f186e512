// The 8-bit library: patterns and text are UTF-8.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/loader/pretokenizer.h"

#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>

#include "common/base/error.h"
#include "common/loader/unicode.h"

namespace kvlab {
namespace {

// White_Space, for use inside a class. PCRE2's \s differs by U+180E. It ends
// with a property so that a '-' behind it is literal.
constexpr std::string_view kSpaceClass = R"(\t-\r\x{85}\p{Z})";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

/// Walks over a pattern construct by construct, copying what both engines read
/// alike.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  std::string Run() {
    while (!rest_.empty()) Construct();
    if (in_class_) Refuse("a class without ']'");
    return std::move(out_);
  }

 private:
  [[noreturn]] static void Refuse(std::string_view what) {
    Fail("expected a pattern that PCRE2 reads as Oniguruma does, found ",
         Printable(what),
         "; use a tokenizer.json whose pattern does without it");
  }

  /// Moves the next `count` bytes to the output.
  void Copy(std::size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  void Replace(std::size_t count, std::string_view by) {
    out_ += by;
    rest_.remove_prefix(count);
  }

  void Construct() {
    const char c = rest_[0];
    if (c == '\\') return Escape();
    if (in_class_) {
      if (c == '[') Refuse("'[' in a class (write \\[)");
      if (rest_.starts_with("&&")) Refuse("'&&' in a class");
      if (c == ']') in_class_ = false;
      return Copy(1);
    }
    if (c == '[') return OpenClass();
    if (c == '(') return Group();
    if (c == '{') return Repeat();
    // In Ruby's syntax these match at every line, not only at the ends.
    if (c == '^' || c == '$') Refuse(StrCat("the anchor '", c, "'"));
    Copy(1);
  }

  void OpenClass() {
    Copy(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with("]")) Refuse("an empty class");
    in_class_ = true;
  }

  void Group() {
    for (const std::string_view known :
         {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (rest_.starts_with(known)) return Copy(known.size());
    }
    if (rest_.starts_with("(?") || rest_.starts_with("(*")) {
      Refuse(StrCat("the group \"", rest_.substr(0, 4), "\""));
    }
    Copy(1);
  }

  /// {n}, {n,} or {n,m}; what may follow differs between the engines.
  void Repeat() {
    std::size_t i = 1;
    const auto digits = [&] {
      const std::size_t start = i;
      while (i < rest_.size() && IsDigit(rest_[i])) ++i;
      return i - start;
    };
    if (digits() == 0) Refuse("'{' that starts no {n,m} (write \\{)");
    bool exact = true;
    if (i < rest_.size() && rest_[i] == ',') {
      exact = false;
      ++i;
      digits();
    }
    if (i >= rest_.size() || rest_[i] != '}') {
      Refuse("'{' that starts no {n,m} (write \\{)");
    }
    Copy(i + 1);
    // Oniguruma repeats {n,m}+ and makes {n}? optional; in PCRE2 the one is
    // possessive and the other {n}.
    if (rest_.starts_with("+") || (exact && rest_.starts_with("?"))) {
      Refuse("'+' or '?' behind a {n,m}");
    }
  }

  void Escape() {
    if (rest_.size() < 2) Refuse("a '\\' at the end");
    const char c = rest_[1];
    switch (c) {
      case 's':
        return in_class_ ? Replace(2, kSpaceClass)
                         : Replace(2, StrCat('[', kSpaceClass, ']'));
      case 'S':
        if (in_class_) Refuse("\\S in a class");
        return Replace(2, StrCat("[^", kSpaceClass, ']'));
      case 'p':
      case 'P': {
        const std::size_t end = rest_.find('}');
        if (rest_.substr(2, 1) != "{" || end == std::string_view::npos) {
          Refuse("\\p without {name}");
        }
        return Copy(end + 1);
      }
      case 'x': {
        const std::size_t end = rest_.find('}');
        if (rest_.substr(2, 1) != "{" || end == std::string_view::npos) {
          Refuse("\\x without {code}");
        }
        return Copy(end + 1);
      }
      case 'u': {
        const std::string_view hex = rest_.substr(2, 4);
        if (hex.size() != 4 || !std::all_of(hex.begin(), hex.end(), IsHex)) {
          Refuse("\\u without four hexadecimal digits");
        }
        return Replace(6, StrCat("\\x{", hex, '}'));
      }
      case 'r':
      case 'n':
      case 't':
      case 'd':
      case 'D':
        return Copy(2);
      default:
        if (std::ispunct(static_cast<unsigned char>(c)) != 0) return Copy(2);
        Refuse(StrCat('\\', c));
    }
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

std::string Pcre2Message(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, std::size(text)) < 0) {
    return StrCat("PCRE2 error ", code);
  }
  return reinterpret_cast<const char*>(text);
}

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* p) const {
    kFree(p);
  }
};
template <typename T, auto kFree>
using Owned = std::unique_ptr<T, Freer<kFree>>;

/// Tries a pattern at one place of a text after the other, in a bounded number
/// of steps. An honest pattern takes a few steps for a word, and one or two for
/// each character of a long run of spaces (measured with the patterns of GPT-2,
/// GPT-4o, Llama 3, Qwen3, DeepSeek-V3); one like (a+)+b tries 2^n ways.
class Matcher {
 public:
  Matcher(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        budget_(std::min<std::uint64_t>(1000 + 16 * std::uint64_t{text.size()},
                                        1 << 30)) {
    if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
    pcre2_set_heap_limit(context_.get(), 512 * 1024);  // KiB
  }

  /// Where the match that begins at byte `start` ends; nullopt if none does.
  std::optional<std::size_t> EndFrom(std::size_t start) {
    // PCRE2 bounds the steps of one match only. So each match is given few; if
    // they do not suffice, twice as many, out of the whole text's budget.
    std::uint32_t steps = 64;
    int result = Match(start, steps);
    while (result == PCRE2_ERROR_MATCHLIMIT && steps <= budget_) {
      budget_ -= steps;
      steps *= 2;
      result = Match(start, steps);
    }
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result < 0) {
      Fail(
          "the pattern of tokenizer.json (pre_tokenizer) cannot split a text "
          "of ",
          text_.size(), " bytes, at byte ", start, ": ", Pcre2Message(result),
          "; try a shorter text");
    }
    return pcre2_get_ovector_pointer(data_.get())[1];
  }

 private:
  int Match(std::size_t start, std::uint32_t steps) {
    pcre2_set_match_limit(context_.get(), steps);
    const auto match = [&](std::uint32_t options) {
      // Not checking the whole text again at each match keeps this linear.
      return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()),
                         text_.size(), start, PCRE2_NO_UTF_CHECK | options,
                         data_.get(), context_.get());
    };
    const int result = match(0);
    // Machine code works on a small fixed stack, the interpreter on the heap.
    return result == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : result;
  }

  const pcre2_code* code_;
  std::string_view text_;
  Owned<pcre2_match_data, pcre2_match_data_free> data_;
  Owned<pcre2_match_context, pcre2_match_context_free> context_;
  std::uint64_t budget_;
};

}  // namespace

std::string OnigurumaToPcre2(std::string_view pattern) {
  return Translator(pattern).Run();
}

struct SplitPattern::Code {
  Owned<pcre2_code, pcre2_code_free> code;
};

SplitPattern::SplitPattern(std::string_view pattern)
    : code_(std::make_unique<Code>()) {
  constexpr std::size_t kMaxPattern = 100'000;  // bytes; real ones have < 3,000
  if (pattern.size() > kMaxPattern) {
    Fail("expected a pattern of at most ", kMaxPattern, " bytes, found ",
         pattern.size());
  }
  const std::string translated = OnigurumaToPcre2(pattern);
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // for '.', as Oniguruma
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, context.get()));
  if (code_->code == nullptr) {
    Fail("expected a regular expression, found \"", Printable(pattern),
         "\": ", Pcre2Message(error), " (byte ", offset, " of \"",
         Printable(translated), "\")");
  }
  // Where the system forbids code made at run time, the interpreter runs.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

void SplitPattern::Split(std::string_view text, const Emit& emit) const {
  Matcher matcher(code_->code.get(), text);
  std::size_t emitted = 0;  // text before this has been emitted
  std::optional<std::size_t> last_end;
  for (std::size_t start = 0;;) {
    const std::optional<std::size_t> end = matcher.EndFrom(start);
    // An empty match right behind a match does not count.
    if (!end || end == last_end) {
      if (start == text.size()) break;
      start += NextUtf8(text.substr(start)).length;
      continue;
    }
    if (start > emitted) emit(text.substr(emitted, start - emitted));
    if (*end > start) emit(text.substr(start, *end - start));
    emitted = start = *end;
    last_end = end;
  }
  if (emitted < text.size()) emit(text.substr(emitted));
}

}  // namespace kvlab
