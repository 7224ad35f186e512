// What the checker says to answers, and what it lets a student change.
#include "exercises/checker/answers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "exercises/checker/yours.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

const std::vector<Fact> kFacts = {
    {.name = "steps", .value = 207, .seen = "look at n."},
    {.name = "largest", .value = 0.125, .within = 1e-3, .seen = "look at M."},
    {.name = "marker", .value = "rescale", .seen = "look at S."},
    {.name = "places", .value = {3, 7}, .seen = "look at the map."}};

constexpr char kRight[] =
    "steps = 207\nlargest = 0.12501\nmarker = \"[Rescale] \"\nplaces = [3, "
    "\"7\"]\n";

class AnswersTest : public testing::Test {
 protected:
  std::vector<Judgement> JudgeFile(const std::string& text,
                                   std::vector<Fact> facts = kFacts) {
    WriteFile(dir_ / "answers.toml", text);
    return Judge(facts, ReadAnswers(dir_ / "answers.toml"));
  }
  Judgement Of(const std::string& name, const std::string& text) {
    const auto judged = JudgeFile(text);
    return *std::ranges::find(judged, name, &Judgement::name);
  }

  TempDir dir_;
};

TEST_F(AnswersTest, RightOnes) {
  for (const Judgement& j : JudgeFile(kRight)) {
    EXPECT_EQ(j.verdict, AnswerVerdict::kRight) << j.name << ": " << j.text;
  }
}

TEST_F(AnswersTest, TellsMissingFromNoNumberFromWrong) {
  for (const char* empty : {"steps = \"\"", "steps = []", "other = 1"}) {
    EXPECT_EQ(Of("steps", empty).verdict, AnswerVerdict::kMissing) << empty;
  }
  for (const char* text :
       {"steps = \"many\"", "steps = \"3,5\"", "steps = \"0x10\"",
        "steps = true", "steps = \"12 tokens\"", "steps = nan",
        "steps = \"1e999\""}) {
    EXPECT_EQ(Of("steps", text).verdict, AnswerVerdict::kNotANumber) << text;
  }
  for (const char* wrong : {"steps = 206", "steps = 208", "steps = \"-207\"",
                            "steps = 207.5", "steps = \"207.5\""}) {
    EXPECT_EQ(Of("steps", wrong).verdict, AnswerVerdict::kWrong) << wrong;
  }
}

TEST_F(AnswersTest, AWrongOneIsShownWhatTheRunShowed) {
  const Judgement j = Of("steps", "steps = 206");
  EXPECT_EQ(j.text, "wrong: you wrote 206. look at n.");
}

TEST_F(AnswersTest, FloatsAgreeWithinTheirTolerance) {
  const auto verdict = [&](const char* text) {
    return Of("largest", text).verdict;
  };
  EXPECT_EQ(verdict("largest = 0.1251"), AnswerVerdict::kRight);
  EXPECT_EQ(verdict("largest = 0.1252"), AnswerVerdict::kWrong);
  EXPECT_EQ(verdict("largest = -0.125"), AnswerVerdict::kWrong);
}

TEST_F(AnswersTest, SaysWhatFormIsExpected) {
  EXPECT_TRUE(Has(Of("steps", "steps = [207, 207]").text, "one value"));
  EXPECT_EQ(Of("steps", "steps = [207]").verdict, AnswerVerdict::kRight);
  for (const char* text : {"places = \"3, 7\"", "places = 3"}) {
    EXPECT_EQ(Of("places", text).verdict, AnswerVerdict::kForm);
    EXPECT_TRUE(Has(Of("places", text).text, "a list is expected"));
  }
  EXPECT_EQ(Of("places", "places = [3, \"x\"]").verdict,
            AnswerVerdict::kNotANumber);
  for (const char* text : {"places = [7, 3]", "places = [3]"}) {
    EXPECT_EQ(Of("places", text).verdict, AnswerVerdict::kWrong) << text;
  }
}

TEST_F(AnswersTest, AnotherOrderIsCalledThat) {
  EXPECT_TRUE(Has(Of("places", "places = [7, 3]").text, "another order"));
  EXPECT_TRUE(Has(Of("places", "places = [7, 4]").text, "look at the map"));
}

TEST_F(AnswersTest, AListMayBeASet) {
  const Fact fact{
      .name = "heads", .value = {3, 7}, .any_order = true, .seen = "."};
  EXPECT_EQ(JudgeFile("heads = [7, 3]", {fact})[0].verdict,
            AnswerVerdict::kRight);
  EXPECT_EQ(JudgeFile("heads = [7, 7]", {fact})[0].verdict,
            AnswerVerdict::kWrong);
}

TEST_F(AnswersTest, WordsThatMayBeWrittenAreNamed) {
  const Fact fact{.name = "form",
                  .value = "rescan",
                  .words = {"single", "stored", "rescan"},
                  .seen = "look at K."};
  const auto text = [&](const char* toml) {
    return JudgeFile(toml, {fact})[0].text;
  };
  EXPECT_EQ(text("form = \"Rescan\""), "");
  EXPECT_TRUE(Has(text("form = \"stored\""), "look at K."));
  EXPECT_TRUE(Has(text("form = \"two\""), "one of: single, stored, rescan"));
}

TEST_F(AnswersTest, TooFewDigitsAreNoMisunderstanding) {
  EXPECT_TRUE(Has(Of("largest", "largest = 0.126").text, "all the digits"));
  EXPECT_TRUE(Has(Of("largest", "largest = 0.13").text, "look at M."));
  EXPECT_TRUE(Has(Of("steps", "steps = 206").text, "look at n."));
}

TEST_F(AnswersTest, TellsASwap) {
  const std::vector<Fact> facts = {{.name = "a", .value = 5, .seen = "."},
                                   {.name = "b", .value = 9, .seen = "."}};
  const auto swapped = JudgeFile("a = 9\nb = 5", facts);
  EXPECT_EQ(swapped[0].verdict, AnswerVerdict::kSwapped);
  EXPECT_EQ(swapped[1].verdict, AnswerVerdict::kSwapped);
  const auto one = JudgeFile("a = 9\nb = 9", facts);
  EXPECT_EQ(one[0].verdict, AnswerVerdict::kWrong);
  EXPECT_EQ(one[1].verdict, AnswerVerdict::kRight);
}

TEST_F(AnswersTest, WhatNothingAsksForIsNamed) {
  const auto judged = JudgeFile(std::string(kRight) + "stepz = 1\n");
  ASSERT_EQ(judged.size(), 5u);
  EXPECT_EQ(judged[4].verdict, AnswerVerdict::kNoQuestion);
  EXPECT_EQ(judged[4].name, "stepz");
  // In the order of the file; what is gone from it comes last.
  const auto some = JudgeFile("marker = \"\"\nsteps = 207\n");
  ASSERT_EQ(some.size(), 4u);
  EXPECT_EQ(some[0].name, "marker");
  EXPECT_EQ(some[1].name, "steps");
  EXPECT_EQ(some[2].name, "largest");
}

TEST_F(AnswersTest, AFactMayJudgeItself) {
  for (const bool ok : {true, false}) {
    const Fact fact{.name = "k", .ok = ok, .seen = "it was not evicted."};
    EXPECT_EQ(JudgeFile("k = 3", {fact})[0].verdict,
              ok ? AnswerVerdict::kRight : AnswerVerdict::kWrong);
  }
}

TEST_F(AnswersTest, WhatIsNoTomlIsSaidInOneLine) {
  WriteFile(dir_ / "a.toml", "steps = 1\nlargest = = 2\n");
  EXPECT_TRUE(Has(ErrorOf([&] { ReadAnswers(dir_ / "a.toml"); }),
                  "a.toml:2: cannot be read as TOML"));
  WriteFile(dir_ / "a.toml", "[steps]\nn = 1\n");
  EXPECT_TRUE(Has(ErrorOf([&] { ReadAnswers(dir_ / "a.toml"); }), "a table"));
  EXPECT_TRUE(
      Has(ErrorOf([&] { ReadAnswers(dir_ / "none.toml"); }), "none.toml"));
}

TEST_F(AnswersTest, FactsThatAreNotWholeAreRefused) {
  EXPECT_TRUE(Has(ErrorOf([] {
                    ParseFacts({{"facts", nlohmann::json::array()}});
                  }),
                  "not whole"));
  const auto facts =
      ParseFacts({{"facts",
                   {{{"name", "a"}, {"value", 3}, {"seen", "x"}},
                    {{"name", "b"}, {"ok", true}, {"seen", "y"}}}},
                  {"done", true}});
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].value, 3);
  EXPECT_EQ(facts[1].ok, true);
}

constexpr char kStarter[] =
    "#include <x>\n"
    "int F() {\n"
    "  // [yours]\n"
    "  return 0;\n"
    "  // [yours]\n"
    "}\n";

TEST(YoursTest, InsideEverythingMayChange) {
  const std::string student =
      "#include <x>   \r\n"
      "int F() {\r\n"
      "  // [yours]\r\n"
      "  int a = 3;\r\n"
      "\r\n"
      "  return a;\r\n"
      "  // [yours]\r\n"
      "}";
  EXPECT_FALSE(ChangedOutsideYours(kStarter, student).has_value());
  EXPECT_FALSE(ChangedOutsideYours(kStarter, kStarter).has_value());
}

TEST(YoursTest, OutsideNothing) {
  const auto line = [](std::string student) {
    const auto fault = ChangedOutsideYours(kStarter, student);
    return fault ? fault->line : 0;
  };
  EXPECT_EQ(line("#include <y>\nint F() {\n  // [yours]\n  // [yours]\n}\n"),
            1);
  EXPECT_EQ(line("#include <x>\nint F() {\n  // [yours]\n  // [yours]\n}\n"
                 "int G();\n"),
            6);
  EXPECT_EQ(line("#include <x>\nint F() {\n  return 1;\n}\n"), 3);
  EXPECT_NE(line(""), -1);
  EXPECT_TRUE(ChangedOutsideYours(kStarter, "").has_value());
}

TEST(YoursTest, ForbiddenWordsAreWholeAndOutsideOfComments) {
  const std::vector<std::string> words = {"Solve"};
  EXPECT_FALSE(ForbiddenWord("int Solver; // Solve\n", words).has_value());
  EXPECT_EQ(ForbiddenWord("a\n  Solve(x);\n", words)->line, 2);
  EXPECT_EQ(ForbiddenWord("kvlab::Solve", words)->line, 1);
  EXPECT_TRUE(ForbiddenWord("#include \"day/x.h\"", {"day/"}).has_value());
  EXPECT_TRUE(ForbiddenWord("#include \"a//day//x.h\"", {"day/x"}).has_value());
  for (const char* fine :
       {"/* not like\n Solve */", "f(\"Solve\");", "f(\"\\\" Solve\");",
        "int Resolve;", "'\"'; \"Solve\""}) {
    EXPECT_FALSE(ForbiddenWord(fine, words).has_value()) << fine;
  }
  for (const char* used :
       {"f(\"//\"), Solve();", "/* */ Solve();", "'\"'; Solve()",
        "1'000 + Solve() + 2'000", "// a\nSolve"}) {
    EXPECT_TRUE(ForbiddenWord(used, words).has_value()) << used;
  }
}

}  // namespace
}  // namespace kvlab
