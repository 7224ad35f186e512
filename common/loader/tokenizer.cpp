#include "common/loader/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <utility>

#include "common/base/error.h"
#include "common/loader/added_tokens.h"
#include "common/loader/bpe.h"
#include "common/loader/byte_level.h"
#include "common/loader/json.h"
#include "common/loader/pretokenizer.h"
#include "common/loader/unicode.h"

namespace kvlab {
namespace {

// Bounds on what a file may ask for; real models stay far below. The largest
// vocabularies have 262,144 ids.
constexpr int kMaxId = (1 << 21) - 1;
constexpr std::size_t kMaxAddedTokenBytes = 1000;
constexpr std::size_t kMaxSplitSteps = 16;
constexpr std::uint64_t kMaxFileBytes = 256'000'000;

/// One id of the vocabulary. Ids may have gaps.
struct Token {
  std::string piece;
  bool present = false;
  bool in_model = false;  // in model.vocab, not only in added_tokens
  bool special = false;
};

/// Appends `bytes` to `out` as valid UTF-8, U+FFFD for each broken part, and
/// returns the unfinished character at the end, if there is one.
std::string_view AppendRepaired(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out += bytes.substr(0, step.length);
    } else {
      out += "\uFFFD";
    }
    bytes.remove_prefix(step.length);
  }
  return bytes;
}

/// What a tokenizer.json says, ready for use.
struct Data {
  std::string file;
  std::vector<Token> tokens;                          // by id
  std::unordered_map<std::string_view, int> by_text;  // views into tokens
  std::array<int, 256> byte_ids{};                    // -1: no such piece
  Bpe bpe;
  bool nfc = false;
  bool ignore_merges = false;
  std::vector<SplitPattern> splits;
  AddedTokenSet raw_added;         // searched for in the text as it comes
  AddedTokenSet normalized_added;  // searched for in the normalised rest

  const Token* Get(int id) const {
    if (id < 0 || id >= static_cast<int>(tokens.size())) return nullptr;
    const Token& token = tokens[static_cast<std::size_t>(id)];
    return token.present ? &token : nullptr;
  }

  const Token& Need(int id) const {
    const Token* token = Get(id);
    if (token == nullptr) {
      Fail(file, ": expected an id with a token (0 to ",
           static_cast<int>(tokens.size()) - 1, "), found ", id);
    }
    return *token;
  }

  void EncodeText(std::string_view text, std::vector<int>& ids) const;
  void EncodeWords(std::string_view text, std::size_t step,
                   std::vector<int>& ids) const;
  void EncodeWord(std::string_view word, std::vector<int>& ids) const;
  void AppendBytes(int id, bool skip_special_tokens, std::string& bytes) const;
};

/// Reads a tokenizer.json, one field of the file after another.
/// Whatever would make ids differ from those of `tokenizers` is refused.
class Reader {
 public:
  Reader(const std::filesystem::path& file, Data& data)
      : where_(PathText(file)),
        json_(ReadJsonFile(file, kMaxFileBytes)),
        data_(data) {
    data_.file = where_;
  }

  void Read() {
    const JsonFields top(json_, where_);
    ReadCallSettings(top);
    if (const Json* normalizer = top.FindNonNull("normalizer")) {
      ReadNormalizer(*normalizer, "normalizer");
    }
    ReadPreTokenizer(top);
    CheckDecoder(top);
    ReadModel(top);
    ReadAddedTokens(top);
    // post_processor is not read: it adds BOS and EOS, which the callers of
    // Encode and the chat templates do themselves.
  }

 private:
  [[noreturn]] void Refuse(std::string_view field, std::string_view expected,
                           std::string_view found) const {
    Fail(where_, ": ", field, ": expected ", expected, ", found ", found);
  }

  /// The fields of the object at `place`.
  JsonFields Fields(const Json& value, const std::string& place) const {
    if (!value.is_object()) Refuse(place, "an object", JsonText(value));
    return JsonFields(value, where_, place + ".");
  }

  static const Json& Member(const JsonFields& fields, std::string_view name,
                            std::string_view expected) {
    const Json* value = fields.Find(name);
    if (value == nullptr) fields.Refuse(name, expected, "no such field");
    return *value;
  }

  static bool Bool(const JsonFields& fields, std::string_view name) {
    const Json& value = Member(fields, name, "true or false");
    if (!value.is_boolean()) {
      fields.Refuse(name, "true or false", JsonText(value));
    }
    return value.get<bool>();
  }

  /// Settings that trainers leave in the file and that change the ids.
  static void ReadCallSettings(const JsonFields& top) {
    if (const Json* value = top.FindNonNull("truncation")) {
      top.Refuse("truncation", "null (a prompt is never cut; set it to null)",
                 JsonText(*value));
    }
    if (const Json* value = top.FindNonNull("padding")) {
      // Padding to the longest of a batch leaves a single text alone.
      const Json* strategy = value->is_object() && value->contains("strategy")
                                 ? &(*value)["strategy"]
                                 : value;
      if (*strategy != "BatchLongest") {
        top.Refuse("padding", "null (a prompt is never padded; set it to null)",
                   JsonText(*strategy));
      }
    }
  }

  void ReadNormalizer(const Json& value, const std::string& place) {
    const JsonFields fields = Fields(value, place);
    const std::string type = fields.String("type");
    if (type == "NFC") {
      data_.nfc = true;
    } else if (type == "Sequence") {
      const Json& list = List(fields, "normalizers");
      for (std::size_t i = 0; i < list.size(); ++i) {
        ReadNormalizer(list[i], StrCat(place, ".normalizers[", i, "]"));
      }
    } else {
      fields.Refuse("type", "NFC or a Sequence of it", Quoted(type));
    }
  }

  void ReadPreTokenizer(const JsonFields& top) {
    constexpr std::string_view kExpected =
        "a ByteLevel pre-tokenizer or a Sequence that ends with one";
    const Json* value = top.FindNonNull("pre_tokenizer");
    if (value == nullptr) top.Refuse("pre_tokenizer", kExpected, "none");
    bool byte_level = false;
    ReadPreTokenizerStep(*value, "pre_tokenizer", byte_level);
    if (!byte_level) top.Refuse("pre_tokenizer", kExpected, JsonText(*value));
  }

  // The recursion is bounded by ReadJsonFile's limit on nesting.
  void ReadPreTokenizerStep(const Json& value, const std::string& place,
                            bool& byte_level) {
    const JsonFields fields = Fields(value, place);
    const std::string type = fields.String("type");
    if (type == "Sequence") {
      const Json& list = List(fields, "pretokenizers");
      for (std::size_t i = 0; i < list.size(); ++i) {
        ReadPreTokenizerStep(list[i], StrCat(place, ".pretokenizers[", i, "]"),
                             byte_level);
      }
      return;
    }
    if (byte_level) {
      // It would see the byte-level alphabet, not the text.
      fields.Refuse("type", "nothing behind ByteLevel", Quoted(type));
    }
    if (type == "Split") {
      ReadSplit(fields, place);
    } else if (type == "Digits") {
      AddSplit(place,
               Bool(fields, "individual_digits") ? R"(\p{N})" : R"(\p{N}+)");
    } else if (type == "ByteLevel") {
      byte_level = true;
      if (Bool(fields, "add_prefix_space")) {
        fields.Refuse("add_prefix_space", "false", "true");
      }
      if (fields.BoolOr("use_regex", true)) {
        AddSplit(place, kGpt2Pattern);
      }
    } else {
      fields.Refuse("type", "Split, Digits, ByteLevel or Sequence",
                    Quoted(type));
    }
  }

  void ReadSplit(const JsonFields& fields, const std::string& place) {
    const Json& pattern = Member(fields, "pattern", "{\"Regex\": ...}");
    const std::string behavior = fields.String("behavior");
    if (behavior != "Isolated") {
      fields.Refuse("behavior", "\"Isolated\"", Quoted(behavior));
    }
    if (Bool(fields, "invert")) fields.Refuse("invert", "false", "true");
    if (!pattern.is_object() || pattern.size() != 1 ||
        !pattern.contains("Regex") || !pattern["Regex"].is_string()) {
      fields.Refuse("pattern", "{\"Regex\": \"...\"}", JsonText(pattern));
    }
    AddSplit(place + ".pattern.Regex",
             pattern["Regex"].get_ref<const std::string&>());
  }

  void AddSplit(const std::string& place, std::string_view pattern) {
    if (data_.splits.size() == kMaxSplitSteps) {
      Refuse(place, StrCat("at most ", kMaxSplitSteps, " steps"), "more");
    }
    try {
      data_.splits.emplace_back(pattern);
    } catch (const Error& e) {
      // SplitPattern knows what is wrong, this place where it stands.
      Fail(where_, ": ", place, ": ", e.what());
    }
  }

  void CheckDecoder(const JsonFields& top) {
    const Json* value = top.FindNonNull("decoder");
    if (value == nullptr) top.Refuse("decoder", "ByteLevel", "none");
    const JsonFields fields = Fields(*value, "decoder");
    const std::string type = fields.String("type");
    if (type != "ByteLevel") fields.Refuse("type", "ByteLevel", Quoted(type));
  }

  static const Json& List(const JsonFields& fields, std::string_view name) {
    const Json& value = Member(fields, name, "a list");
    if (!value.is_array()) fields.Refuse(name, "a list", JsonText(value));
    return value;
  }

  static std::string Quoted(std::string_view text) {
    return StrCat('"', Printable(text), '"');
  }

  void ReadModel(const JsonFields& top) {
    const JsonFields model =
        Fields(Member(top, "model", "a BPE model"), "model");
    // Old files have no type; what has merges is BPE there.
    if (model.Find("type") != nullptr) {
      const std::string type = model.String("type");
      if (type != "BPE") model.Refuse("type", "\"BPE\"", Quoted(type));
    }
    if (const Json* dropout = model.FindNonNull("dropout")) {
      if (!dropout->is_number() || dropout->get<double>() != 0) {
        model.Refuse("dropout", "null or 0 (merges are not left to chance)",
                     JsonText(*dropout));
      }
    }
    for (const char* name :
         {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* value = model.FindNonNull(name);
      if (value != nullptr && *value != "") {
        model.Refuse(name, "null or \"\"", JsonText(*value));
      }
    }
    if (model.FindNonNull("byte_fallback") && Bool(model, "byte_fallback")) {
      model.Refuse("byte_fallback", "false (the pieces are bytes already)",
                   "true");
    }
    data_.ignore_merges =
        model.FindNonNull("ignore_merges") && Bool(model, "ignore_merges");
    ReadVocabulary(model);
    if (const Json* unknown = model.FindNonNull("unk_token")) {
      // With all 256 bytes in the vocabulary nothing is ever unknown.
      if (std::count(data_.byte_ids.begin(), data_.byte_ids.end(), -1) > 0) {
        model.Refuse("unk_token", "null, or a vocabulary with all 256 bytes",
                     JsonText(*unknown));
      }
    }
    ReadMerges(model);
  }

  int CheckedId(const Json& value, std::string_view name) const {
    const bool integer = value.is_number_integer();
    if (!integer ||
        (value.is_number_unsigned() ? value.get<std::uint64_t>() > kMaxId
                                    : value.get<std::int64_t>() < 0)) {
      Refuse(name, StrCat("an id of 0 to ", kMaxId), JsonText(value));
    }
    return value.get<int>();
  }

  /// Names a token in messages: model.vocab["Ġa"].
  static std::string Place(std::string_view list, std::string_view token) {
    return StrCat(list, "[", Quoted(token), "]");
  }

  /// Enters a token that is not known yet.
  void Add(int id, std::string_view text, bool in_model) {
    Token& token = data_.tokens[static_cast<std::size_t>(id)];
    if (token.present) {
      Refuse(Place(in_model ? "model.vocab" : "added_tokens", text),
             "an id of its own",
             StrCat(id, ", which ", Quoted(token.piece), " has too"));
    }
    token.piece = text;
    token.present = true;
    token.in_model = in_model;
    data_.by_text.emplace(token.piece, id);
  }

  void ReadVocabulary(const JsonFields& model) {
    const Json& vocab = Member(model, "vocab", "pieces and their ids");
    if (!vocab.is_object() || vocab.empty()) {
      model.Refuse("vocab", "an object of pieces and their ids",
                   JsonText(vocab));
    }
    // Room for all ids first: by_text holds views that must not move.
    int largest = 0;
    for (const auto& [piece, value] : vocab.items()) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxId) {
        CheckedId(value, Place("model.vocab", piece));
      }
      largest = std::max(largest, value.get<int>());
    }
    if (const auto added = json_.find("added_tokens"); added != json_.end()) {
      for (const Json& entry : *added) {
        if (entry.is_object() && entry.contains("id")) {
          largest =
              std::max(largest, CheckedId(entry["id"], "added_tokens[].id"));
        }
      }
    }
    data_.tokens.resize(static_cast<std::size_t>(largest) + 1);
    data_.by_text.reserve(vocab.size());
    for (const auto& [piece, value] : vocab.items()) {
      Add(value.get<int>(), piece, true);
    }
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      const auto found = data_.by_text.find(ToByteLevel({&c, 1}));
      data_.byte_ids[static_cast<std::size_t>(byte)] =
          found == data_.by_text.end() ? -1 : found->second;
    }
  }

  void ReadMerges(const JsonFields& model) {
    const Json& list = List(model, "merges");
    std::vector<BpeMerge> merges;
    merges.reserve(list.size());
    std::string both;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto [left, right] = MergePair(list[i], i);
      both.assign(left).append(right);
      merges.push_back({PieceId(left, i), PieceId(right, i),
                        static_cast<int>(i), PieceId(both, i)});
    }
    // Bytes alone would be valid BPE, but a file like that is a broken export.
    // A vocabulary of whole words needs none where it is looked up as a whole.
    if (merges.empty() && !data_.ignore_merges) {
      model.Refuse("merges", "at least one merge", "an empty list");
    }
    data_.bpe = Bpe(std::move(merges), static_cast<int>(data_.tokens.size()));
  }

  /// A merge is written "a b" or, in newer files, ["a", "b"].
  std::pair<std::string_view, std::string_view> MergePair(const Json& entry,
                                                          std::size_t i) const {
    if (entry.is_string()) {
      const std::string_view text = entry.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string_view::npos &&
          text.find(' ', space + 1) == std::string_view::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      return {entry[0].get_ref<const std::string&>(),
              entry[1].get_ref<const std::string&>()};
    }
    Refuse(StrCat("model.merges[", i, "]"), "\"left right\" or two strings",
           JsonText(entry));
  }

  int PieceId(std::string_view piece, std::size_t merge) const {
    const auto found = data_.by_text.find(piece);
    if (found == data_.by_text.end()) {
      Refuse(StrCat("model.merges[", merge, "]"), "pieces of model.vocab",
             Quoted(piece));
    }
    return found->second;
  }

  void ReadAddedTokens(const JsonFields& top) {
    const Json* list = top.FindNonNull("added_tokens");
    if (list == nullptr) return;
    if (!list->is_array()) {
      top.Refuse("added_tokens", "a list", JsonText(*list));
    }
    // `tokenizers` looks for special tokens first; that matters only where two
    // become equal by normalisation.
    std::vector<AddedToken> sets[2][2];  // [normalized][not special]
    std::unordered_map<std::string, bool> seen;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string place = StrCat("added_tokens[", i, "]");
      const JsonFields entry = Fields((*list)[i], place);
      AddedToken token;
      token.id = entry.Int("id", 0, kMaxId);
      token.content = entry.String("content");
      token.single_word = Bool(entry, "single_word");
      token.lstrip = Bool(entry, "lstrip");
      token.rstrip = Bool(entry, "rstrip");
      const bool normalized = Bool(entry, "normalized");
      const bool special = Bool(entry, "special");
      if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
        entry.Refuse("content", StrCat("1 to ", kMaxAddedTokenBytes, " bytes"),
                     StrCat(token.content.size()));
      }
      if (!seen.emplace(token.content, true).second) {
        entry.Refuse("content", "a token listed once", Quoted(token.content));
      }
      // A token may stand in the vocabulary too, under the same id.
      const auto known = data_.by_text.find(token.content);
      if (known == data_.by_text.end()) {
        Add(token.id, token.content, false);
      } else if (known->second != token.id) {
        entry.Refuse("id", StrCat(known->second, " as in model.vocab"),
                     StrCat(token.id));
      }
      data_.tokens[static_cast<std::size_t>(token.id)].special = special;
      if (normalized && data_.nfc) token.content = ToNfc(token.content);
      sets[normalized][!special].push_back(std::move(token));
    }
    for (auto& [special, plain] : sets) {
      std::move(plain.begin(), plain.end(), std::back_inserter(special));
    }
    data_.raw_added = AddedTokenSet(std::move(sets[false][0]));
    data_.normalized_added = AddedTokenSet(std::move(sets[true][0]));
  }

  std::string where_;
  Json json_;
  Data& data_;
};

void Data::EncodeWord(std::string_view word, std::vector<int>& ids) const {
  if (ignore_merges) {
    const auto found = by_text.find(ToByteLevel(word));
    if (found != by_text.end() && Need(found->second).in_model) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<int> bytes;
  bytes.reserve(word.size());
  for (const char c : word) {
    const int id = byte_ids[static_cast<unsigned char>(c)];
    if (id < 0) {
      Fail(file,
           ": model.vocab: expected a piece for every byte of the text, "
           "found none for ",
           static_cast<int>(static_cast<unsigned char>(c)),
           "; leave it out of the text");
    }
    bytes.push_back(id);
  }
  bpe.Encode(bytes, ids);
}

void Data::EncodeWords(std::string_view text, std::size_t step,
                       std::vector<int>& ids) const {
  if (step == splits.size()) return EncodeWord(text, ids);
  splits[step].Split(
      text, [&](std::string_view piece) { EncodeWords(piece, step + 1, ids); });
}

void Data::EncodeText(std::string_view text, std::vector<int>& ids) const {
  std::string normalized;
  if (nfc) text = normalized = ToNfc(text);
  for (const TextPart& part : normalized_added.Cut(text)) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      EncodeWords(part.text, 0, ids);
    }
  }
}

void Data::AppendBytes(int id, bool skip_special_tokens,
                       std::string& bytes) const {
  if (id < 0) Fail(file, ": expected an id of 0 or more, found ", id);
  const Token* token = Get(id);
  if (token == nullptr || (skip_special_tokens && token->special)) return;
  bytes += FromByteLevel(token->piece);
}

}  // namespace

struct Tokenizer::Impl : Data {};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::Load(const std::filesystem::path& file) {
  auto impl = std::make_unique<Impl>();
  Reader(file, *impl).Read();
  return Tokenizer(std::move(impl));
}

std::vector<int> Tokenizer::Encode(std::string_view text) const {
  // Positions in a word are ints.
  constexpr std::size_t kMaxText = std::numeric_limits<int>::max() / 4;
  if (text.size() > kMaxText) {
    Fail("text: expected at most ", kMaxText, " bytes, found ", text.size());
  }
  if (const auto broken = FindInvalidUtf8(text)) {
    Fail("text: expected UTF-8, found a broken character at byte ", *broken,
         " (", Printable(text.substr(*broken, 1)), "); save it as UTF-8");
  }
  std::vector<int> ids;
  for (const TextPart& part : impl_->raw_added.Cut(text)) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      impl_->EncodeText(part.text, ids);
    }
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int> ids,
                              bool skip_special_tokens) const {
  std::string bytes;
  for (const int id : ids) impl_->AppendBytes(id, skip_special_tokens, bytes);
  std::string text;
  if (!AppendRepaired(bytes, text).empty()) text += "\uFFFD";
  return text;
}

std::string Tokenizer::TokenBytes(int id) const {
  return FromByteLevel(impl_->Need(id).piece);
}

std::string_view Tokenizer::Piece(int id) const {
  return impl_->Need(id).piece;
}

std::optional<int> Tokenizer::Find(std::string_view token) const {
  const auto found = impl_->by_text.find(token);
  if (found == impl_->by_text.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::IsSpecial(int id) const {
  const Token* token = impl_->Get(id);
  return token != nullptr && token->special;
}

int Tokenizer::size() const { return static_cast<int>(impl_->tokens.size()); }

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer,
                                   bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

std::string StreamingDecoder::Push(int id) {
  tokenizer_.impl_->AppendBytes(id, skip_special_tokens_, held_);
  std::string text;
  held_ = std::string(AppendRepaired(held_, text));
  return text;
}

std::string StreamingDecoder::Flush() {
  // At most one character is held, and cut short it is one broken part.
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? "\uFFFD" : "";
}

}  // namespace kvlab
