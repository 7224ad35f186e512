#include "common/lab/needle_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>
#include <sstream>

#include "common/base/error.h"
#include "common/lab/cli.h"
#include "common/loader/chat.h"
#include "tests/require.h"

namespace kvlab {
namespace {

class NeedlePromptTest : public testing::Test {
 protected:
  NeedlePrompt Build(const NeedleOptions& options) {
    return BuildNeedlePrompt(options, book_, tokenizer_, Render);
  }
  static std::string Render(const std::string& facts,
                            const std::string& question) {
    const ChatMessage user{.role = "user", .content = facts + "\n" + question};
    return ChatTemplate(ChatStyle::kChatMl).Render({&user, 1}, false);
  }
  std::string ErrorOf(const NeedleOptions& options) {
    try {
      Build(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), kExitUsage);
      return error.what();
    }
    return "no error";
  }

  FactBook book_ = FactBook::LoadShipped();
  Tokenizer tokenizer_ =
      Tokenizer::Load(LabModelDirectory() / "tokenizer.json");
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The sentences between the chat markers, the question left out.
std::vector<std::string> Sentences(const NeedlePrompt& prompt) {
  const std::size_t begin = prompt.text.find('\n') + 1;
  const std::size_t end = prompt.text.rfind("\n" + prompt.question);
  std::istringstream text(prompt.text.substr(begin, end - begin));
  std::vector<std::string> sentences;
  for (std::string word, sentence; text >> word;) {
    sentence += (sentence.empty() ? "" : " ") + word;
    if (sentence.back() != '.') continue;
    sentences.push_back(sentence);
    sentence.clear();
  }
  return sentences;
}

TEST_F(NeedlePromptTest, HasExactlyTheAskedLength) {
  for (const int context : {64, 100, 101, 102, 103, 255, 256, 1000, 2061}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const NeedlePrompt prompt = Build({.context = context, .seed = seed});
      EXPECT_EQ(std::ssize(prompt.tokens), context);
      EXPECT_EQ(prompt.tokens, tokenizer_.Encode(prompt.text));
      EXPECT_EQ(prompt.expected, "ramen");
      EXPECT_EQ(prompt.question, "What is Zara's favorite food?");
    }
  }
  EXPECT_EQ(Build({.context = 8000}).tokens.size(), 8000u);
}

TEST_F(NeedlePromptTest, NeedleStandsAtItsDepthOnceAmongDifferentFacts) {
  for (const double depth : {0.0, 0.05, 0.5, 0.95, 1.0}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const auto sentences = Sentences(Build({.depth = depth, .seed = seed}));
      ASSERT_GT(sentences.size(), 150u);
      const std::set<std::string> different(sentences.begin(), sentences.end());
      EXPECT_EQ(different.size(), sentences.size());
      const auto at =
          std::ranges::find(sentences, "Zara's favorite food is ramen.");
      ASSERT_NE(at, sentences.end());
      const double share =
          double(at - sentences.begin()) / double(sentences.size() - 1);
      EXPECT_NEAR(share, depth, 0.03) << "seed " << seed;
      for (const std::string& sentence : sentences) {
        if (sentence == *at) continue;
        EXPECT_FALSE(ContainsWord(sentence, "ramen")) << sentence;
        EXPECT_FALSE(Has(sentence, "Zara's favorite food")) << sentence;
      }
    }
  }
}

/// "red" is a value of a dozen attributes: unguarded filler would be full of
/// it.
TEST_F(NeedlePromptTest, NoFillerHoldsTheValueOrSaysItOtherwise) {
  const NeedlePrompt prompt = Build({.needle = "Zara's horse is red."});
  for (const std::string& sentence : Sentences(prompt)) {
    if (sentence == "Zara's horse is red.") continue;
    EXPECT_FALSE(ContainsWord(sentence, "red")) << sentence;
    EXPECT_FALSE(sentence.starts_with("Zara's horse")) << sentence;
  }
}

TEST_F(NeedlePromptTest, SameOptionsGiveTheSamePromptOthersDoNot) {
  EXPECT_EQ(Build({}).tokens, Build({}).tokens);
  EXPECT_NE(Build({.seed = 1}).tokens, Build({.seed = 2}).tokens);
  EXPECT_NE(Build({.depth = 0.5}).tokens, Build({.depth = 0.6}).tokens);
  EXPECT_NO_THROW(Build({.seed = ~std::uint64_t{0}}));
}

TEST_F(NeedlePromptTest, AnyNeedleOfAKnownWordingBringsItsQuestion) {
  const auto prompt = [&](const std::string& needle) {
    return Build({.context = 256, .needle = needle});
  };
  EXPECT_EQ(prompt("O'Brien's favorite food is phở bò.").expected, "phở bò");
  EXPECT_EQ(prompt("O'Brien's favorite food is x.").question,
            "What is O'Brien's favorite food?");
  EXPECT_EQ(prompt("Anna-Lena works as an architect.").expected, "architect");
  EXPECT_EQ(prompt("Anna-Lena works as an architect.").question,
            "What is Anna-Lena's job?");
  EXPECT_EQ(prompt("Nguyen lives in Hanoi.").question,
            "Where does Nguyen live?");
  EXPECT_TRUE(
      Has(prompt("Nguyen lives in Hanoi.").text, "Nguyen lives in Hanoi."));
}

/// A sentence can fit several kinds of fact: the closest one asks.
TEST_F(NeedlePromptTest, TheClosestWordingBringsTheQuestion) {
  const auto expect = [&](const std::string& needle,
                          const std::string& question,
                          const std::string& expected) {
    const NeedlePrompt prompt = Build({.context = 256, .needle = needle});
    EXPECT_EQ(prompt.question, question);
    EXPECT_EQ(prompt.expected, expected);
  };
  expect("Zara's dog is called Rex.", "What is Zara's dog called?", "Rex");
  expect("Zara's dog is brown.", "What color is Zara's dog?", "brown");
  expect("Zara's favorite city is Paris.", "What is Zara's favorite city?",
         "Paris");
  expect("Zara's castle is called Le Roi.", "What is Zara's castle called?",
         "Le Roi");
  expect("Maria Garcia's favorite food is the paella.",
         "What is Maria Garcia's favorite food?", "the paella");
  expect("Zara\u2019s favorite food is soba.", "What is Zara's favorite food?",
         "soba");
  for (const char* needle : {"Zara's favorite food is .", "'s dog is brown.",
                             "Zara's dog is .", " lives in Oslo"}) {
    EXPECT_NE(ErrorOf({.context = 256, .needle = needle}), "no error")
        << needle;
  }
}

TEST_F(NeedlePromptTest, AFactOfOnesOwnIsASentence) {
  for (const char* text : {"hello world", "", " ", "Zara lives in Oslo,"}) {
    EXPECT_TRUE(Has(ErrorOf({.facts = {text}}), "full stop")) << text;
    EXPECT_TRUE(Has(ErrorOf({.needle = text}), "full stop")) << text;
  }
}

TEST_F(NeedlePromptTest, WarnsWhereYesOrNoSaysLessThanItSeems) {
  const auto warnings = [&](const std::string& question,
                            std::vector<std::string> facts) {
    return Build({.context = 256,
                  .question = question,
                  .facts = std::move(facts)})
        .warnings;
  };
  const std::vector<std::string> none;
  EXPECT_EQ(warnings("", {}), none);
  EXPECT_EQ(warnings("", {"Leo lives in Oslo."}), none);
  for (const std::string& question :
       book_.Parse("Zara's favorite food is ramen.")->Questions()) {
    EXPECT_EQ(warnings(question, {}), none) << question;
  }
  EXPECT_TRUE(Has(warnings("Who is Zara?", {}).at(0), "something else"));
  EXPECT_TRUE(Has(warnings("", {"Zara's favorite food is pizza."}).at(0),
                  "says something else"));
  EXPECT_TRUE(Has(warnings("", {"Leo's favorite food is ramen."}).at(0),
                  "holds the value"));
}

TEST_F(NeedlePromptTest, AnyNeedleAtAllWithItsOwnQuestion) {
  const NeedlePrompt prompt = Build({.context = 256,
                                     .needle = "The secret word is xyzzy!",
                                     .question = "What is the secret word?"});
  EXPECT_EQ(prompt.expected, "xyzzy");
  EXPECT_TRUE(Has(prompt.text, "The secret word is xyzzy!"));
  EXPECT_TRUE(Has(prompt.text, "\nWhat is the secret word?"));
  const std::string error = ErrorOf({.needle = "The secret word is xyzzy."});
  EXPECT_TRUE(Has(error, "add --question")) << error;
  EXPECT_NE(ErrorOf({.needle = " . "}), "no error");
}

TEST_F(NeedlePromptTest, HoldsTheStudentsOwnFacts) {
  const NeedlePrompt prompt =
      Build({.context = 300,
             .facts = {"Zyphira lives in Oslo.", "Leo's horse is pink."}});
  EXPECT_EQ(prompt.tokens.size(), 300u);
  EXPECT_TRUE(Has(prompt.text, "Zyphira lives in Oslo."));
  EXPECT_TRUE(Has(prompt.text, "Leo's horse is pink."));
}

TEST_F(NeedlePromptTest, TooShortAContextIsToldTheShortest) {
  const std::string error = ErrorOf({.context = 5});
  std::smatch match;
  ASSERT_TRUE(std::regex_search(error, match, std::regex("take (\\d+) tokens")))
      << error;
  const int shortest = std::stoi(match[1]);
  EXPECT_EQ(std::ssize(Build({.context = shortest}).tokens), shortest);
  EXPECT_NE(ErrorOf({.context = shortest - 1}), "no error");
}

TEST_F(NeedlePromptTest, RefusesADepthOutsideItsRange) {
  for (const double depth : {-0.1, 1.1, std::nan("")}) {
    EXPECT_TRUE(Has(ErrorOf({.depth = depth}), "--depth")) << depth;
  }
}

TEST(ContainsWord, WholeWordsInAnyCase) {
  EXPECT_TRUE(ContainsWord("Her food is Ramen.", "ramen"));
  EXPECT_TRUE(ContainsWord("ramen", "RAMEN"));
  EXPECT_TRUE(ContainsWord("a lime pie, please", "lime pie"));
  EXPECT_FALSE(ContainsWord("ramens", "ramen"));
  EXPECT_FALSE(ContainsWord("tramen", "ramen"));
  EXPECT_FALSE(ContainsWord("ramené", "ramen"));
  EXPECT_TRUE(ContainsWord("ramens ramen", "ramen"));
  EXPECT_FALSE(ContainsWord("The Leo as is is", "ramen"));
  EXPECT_FALSE(ContainsWord("anything", ""));
}

TEST_F(NeedlePromptTest, FindsTheTokensOfASentence) {
  const std::string sentence = "Zoë's favorite food is 寿司.";
  const auto prompt =
      Build({.context = 400, .needle = sentence, .question = "What?"});
  const auto range = FindTokens(tokenizer_, prompt.tokens, prompt.needle);
  ASSERT_TRUE(range);
  const auto text = [&](int first, int last) {
    return tokenizer_.Decode(std::vector<int>(
        prompt.tokens.begin() + first, prompt.tokens.begin() + last + 1));
  };
  EXPECT_EQ(text(range->first, range->last), " " + sentence);
  // No token of it can be spared.
  EXPECT_FALSE(Has(text(range->first + 1, range->last), sentence));
  EXPECT_FALSE(Has(text(range->first, range->last - 1), sentence));
  EXPECT_FALSE(FindTokens(tokenizer_, prompt.tokens, "Zoë's dog"));
  EXPECT_FALSE(FindTokens(tokenizer_, prompt.tokens, ""));
}

}  // namespace
}  // namespace kvlab
