#include "common/loader/model.h"

#include <gtest/gtest.h>

#include "tests/loader/temp_dir.h"
#include "tests/loader/tiny_model.h"

namespace kvlab {
namespace {

class ModelTest : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(dir_.path()); }
  Model Load() { return LoadModel(dir_.path()); }
  TempDir dir_;
};

TEST_F(ModelTest, LoadsAWholeDirectory) {
  const Model model = Load();
  EXPECT_EQ(model.directory, dir_.path());
  EXPECT_EQ(model.config.heads, kHeads);
  EXPECT_EQ(model.weights.layers.size(), 2u);
  EXPECT_NE(model.files, nullptr);
  EXPECT_EQ(model.tokenizer.Encode(" fox"), std::vector<int>({257, 'x'}));
  EXPECT_EQ(model.eos_ids, std::vector<int>({kImEnd, 0}));
  ASSERT_TRUE(model.chat.has_value());
  EXPECT_EQ(model.chat_problem, "");
  const ChatMessage hi{"user", "Hi"};
  EXPECT_EQ(model.chat->Render({&hi, 1}, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(ModelTest, KeepsItsFilesMapped) {
  // The weights of a moved Model must outlive the one they were read into.
  Model model = [&] {
    Model first = Load();
    Model second = std::move(first);
    return second;
  }();
  std::filesystem::remove_all(dir_.path());  // a map survives its name
  const auto* embedding =
      static_cast<const float*>(model.weights.embedding.data);
  EXPECT_EQ(embedding[0], 1);
  EXPECT_EQ(embedding[kVocab * kHidden - 1], kVocab * kHidden);
}

TEST_F(ModelTest, LoadsWithoutAChatTemplate) {
  std::filesystem::remove(dir_ / "tokenizer_config.json");
  const Model model = Load();
  EXPECT_FALSE(model.chat.has_value());
  EXPECT_TRUE(Has(model.chat_problem, "chat template"));
  EXPECT_TRUE(Has(model.chat_problem, "--raw"));
}

TEST_F(ModelTest, LoadsWithATemplateItDoesNotKnow) {
  WriteFile(dir_ / "tokenizer_config.json",
            R"({"chat_template": "[INST] {{ messages }} [/INST]"})");
  const Model model = Load();
  EXPECT_FALSE(model.chat.has_value());
  EXPECT_TRUE(Has(model.chat_problem, "--raw"));
}

TEST_F(ModelTest, RefusesATokenizerLargerThanTheEmbedding) {
  // 260 tokens of its own; the embedding has 300 rows.
  WriteFile(dir_ / "tokenizer.json", TinyTokenizer(kVocab - 260).dump());
  EXPECT_EQ(ErrorOf([&] { Load(); }), "");
  WriteFile(dir_ / "tokenizer.json", TinyTokenizer(kVocab - 260 + 1).dump());
  const std::string error = ErrorOf([&] { Load(); });
  EXPECT_TRUE(Has(error, "tokenizer.json: expected ids below vocab_size 300"));
  EXPECT_TRUE(Has(error, "found ids up to 300"));
}

TEST_F(ModelTest, NamesTheFileThatIsMissing) {
  for (const char* name :
       {"tokenizer.json", "model.safetensors", "config.json"}) {
    std::filesystem::remove(dir_ / name);
    EXPECT_TRUE(Has(ErrorOf([&] { Load(); }), name));
  }
}

}  // namespace
}  // namespace kvlab
