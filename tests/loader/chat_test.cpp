#include "common/loader/chat.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "common/loader/json.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

using Messages = std::vector<ChatMessage>;

// Enough of the real templates to be recognised by.
constexpr const char* kChatMlJinja =
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}";
constexpr const char* kQwen3Jinja =
    "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}";
constexpr const char* kQwen25Jinja =
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are Q, created by "
    "A.<|im_end|>\\n'"
    " }}{%- endif %}";

ChatTemplate LoadConfig(const Json& chat_template) {
  const TempDir dir;
  WriteFile(dir / "tokenizer_config.json",
            Json{{"chat_template", chat_template}}.dump());
  return ChatTemplate::Load(dir.path());
}

TEST(ChatTemplate, Qwen3Vectors) {
  const Json file = ReadJsonFile(std::filesystem::path(KVLAB_TEST_DATA) /
                                 "qwen3_chat_vectors.json");
  const ChatTemplate chat(ChatStyle::kQwen3);
  ASSERT_EQ(file["cases"].size(), file["meta"]["count"].get<std::size_t>());
  for (const Json& c : file["cases"]) {
    SCOPED_TRACE(c["id"].get<std::string>());
    Messages messages;
    for (const Json& m : c["messages"]) {
      messages.push_back({m["role"], m["content"]});
      if (m.contains("reasoning_content")) {
        messages.back().reasoning = m["reasoning_content"].get<std::string>();
      }
    }
    // The template thinks unless it is told not to.
    EXPECT_EQ(chat.Render(messages, c["kwargs"].value("enable_thinking", true),
                          c["kwargs"]["add_generation_prompt"]),
              c["rendered"].get<std::string>());
  }
}

TEST(ChatTemplate, Qwen3ThoughtsOfEarlierTurnsAreDropped) {
  const ChatTemplate chat(ChatStyle::kQwen3);
  const std::string thought = "<think>\nhm\n</think>\n\nyes";
  EXPECT_EQ(chat.Render(Messages{{"system", "S"},
                                 {"user", "A"},
                                 {"assistant", thought},
                                 {"user", "B"}},
                        false),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
            "<|im_start|>assistant\nyes<|im_end|>\n"
            "<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n\n</think>\n\n");
  // Since the last question they stay.
  EXPECT_EQ(
      chat.Render(Messages{{"user", "A"}, {"assistant", thought}}, true, false),
      "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n" + thought +
          "<|im_end|>\n");
  // No question at all: nothing comes after it.
  EXPECT_EQ(chat.Render(Messages{{"assistant", thought}}, true, false),
            "<|im_start|>assistant\nyes<|im_end|>\n");
  // Two answers in a row: only the last gets a block without a thought.
  EXPECT_EQ(
      chat.Render(
          Messages{{"user", "A"}, {"assistant", "\nb"}, {"assistant", "\nc"}},
          true, false),
      "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n\nb<|im_end|>"
      "\n<|im_start|>assistant\n<think>\n\n</think>\n\nc<|im_end|>\n");
}

TEST(ChatTemplate, ChatMl) {
  const ChatTemplate chat = LoadConfig(kChatMlJinja);
  EXPECT_EQ(chat.style(), ChatStyle::kChatMl);
  EXPECT_FALSE(chat.has_thinking());
  const std::string turns =
      "<|im_start|>system\n S <|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
      "<|im_start|>assistant\n<think>x</think>b<|im_end|>\n";
  const Messages messages = {
      {"system", " S "}, {"user", "A"}, {"assistant", "<think>x</think>b"}};
  EXPECT_EQ(chat.Render(messages, false), turns + "<|im_start|>assistant\n");
  EXPECT_EQ(chat.Render(messages, true, false), turns);
  // A user's words are not escaped, as in Hugging Face's libraries.
  EXPECT_EQ(chat.Render(Messages{{"user", "<|im_end|>"}}, false, false),
            "<|im_start|>user\n<|im_end|><|im_end|>\n");
}

TEST(ChatTemplate, AddsTheSystemMessageThatTheTemplateHas) {
  const ChatTemplate chat = LoadConfig(kQwen25Jinja);
  EXPECT_EQ(chat.Render(Messages{{"user", "A"}}, false, false),
            "<|im_start|>system\nYou are Q, created by A.<|im_end|>\n"
            "<|im_start|>user\nA<|im_end|>\n");
  EXPECT_EQ(chat.Render(Messages{{"system", "S"}}, false, false),
            "<|im_start|>system\nS<|im_end|>\n");
}

TEST(ChatTemplate, ASystemMessageIsAWholeLiteral) {
  const auto system = [](const std::string& jinja) {
    return LoadConfig(jinja).Render(Messages{{"user", "A"}}, false, false);
  };
  const std::string turn = "<|im_start|>user\nA<|im_end|>\n";
  const std::string start = "<|im_start|>system\\n";
  EXPECT_EQ(system(start), turn);
  EXPECT_EQ(system(start + "<|im_end|>"), turn);
  EXPECT_EQ(system(start + "S' + x + '<|im_end|>"), turn);
  const std::string with_s = "<|im_start|>system\nS<|im_end|>\n" + turn;
  EXPECT_EQ(system(start + "S<|im_end|>"), with_s);
  EXPECT_EQ(system(start + "' + x + '<|im_end|>" + start + "S<|im_end|>"),
            with_s);
  EXPECT_EQ(system(start + "' + x" + start + "S<|im_end|>"), with_s);
  EXPECT_EQ(system("<|im_start|>system\nS<|im_end|>"), with_s);
}

TEST(ChatTemplate, LongTemplatesEnd) {
  // Searching to the end for each of these takes minutes.
  std::string starts;
  for (int i = 0; i < 200'000; ++i) starts += "<|im_start|>system\\n";
  LoadConfig(starts);
  LoadConfig(starts + "'<|im_end|>");
}

TEST(ChatTemplate, TellsWhatStandsInPlaceOfItsFiles) {
  for (const char* name :
       {"chat_template.jinja", "tokenizer_config.json", "chat_template.json"}) {
    const TempDir dir;
    const auto error = [&] {
      return ErrorOf([&] { ChatTemplate::Load(dir.path()); });
    };
    std::filesystem::create_symlink("gone", dir / name);
    EXPECT_TRUE(Has(error(), std::string(name) + ": a link to gone"));
    std::filesystem::remove(dir / name);
    std::filesystem::create_symlink(name, dir / name);  // to itself
    EXPECT_TRUE(Has(error(), std::string(name) + ": cannot be read: "));
  }
}

TEST(ChatTemplate, IsFoundInEveryPlace) {
  EXPECT_EQ(LoadConfig(kQwen3Jinja).style(), ChatStyle::kQwen3);
  EXPECT_TRUE(LoadConfig(kQwen3Jinja).has_thinking());
  EXPECT_EQ(LoadConfig({{{"name", "rag"}, {"template", "x"}},
                        {{"name", "default"}, {"template", kQwen3Jinja}}})
                .style(),
            ChatStyle::kQwen3);
  const TempDir dir;
  WriteFile(dir / "chat_template.json",
            Json{{"chat_template", kQwen3Jinja}}.dump());
  EXPECT_EQ(ChatTemplate::Load(dir.path()).style(), ChatStyle::kQwen3);
  WriteFile(dir / "tokenizer_config.json", "{\"chat_template\": null}");
  EXPECT_EQ(ChatTemplate::Load(dir.path()).style(), ChatStyle::kQwen3);
  WriteFile(dir / "chat_template.jinja", kChatMlJinja);
  EXPECT_EQ(ChatTemplate::Load(dir.path()).style(), ChatStyle::kChatMl);
}

TEST(ChatTemplate, RefusesWhatItDoesNotKnow) {
  const auto refused = [](const Json& chat_template) {
    return ErrorOf([&] { LoadConfig(chat_template); });
  };
  EXPECT_TRUE(Has(refused("[INST] {{ x }} [/INST]"), "chat_template"));
  EXPECT_TRUE(Has(refused("<think> but no turns"), "<|im_start|>"));
  EXPECT_TRUE(Has(refused("'<|im_start|>assistant\\n<think>\\n'"), "<think>"));
  EXPECT_TRUE(Has(refused(7), "tokenizer_config.json: chat_template"));
  EXPECT_TRUE(Has(refused(Json::array({1, {{"name", "x"}}})), "default"));
  EXPECT_TRUE(Has(refused(nullptr), "--raw"));
  const TempDir dir;
  EXPECT_TRUE(Has(ErrorOf([&] { ChatTemplate::Load(dir.path()); }), "--raw"));
  EXPECT_TRUE(Has(ErrorOf([&] { ChatTemplate::Load(dir / "none"); }), "none"));
  WriteFile(dir / "tokenizer_config.json", "{\"chat_template\": \"");
  EXPECT_TRUE(Has(ErrorOf([&] { ChatTemplate::Load(dir.path()); }),
                  "tokenizer_config.json: not valid JSON"));
}

TEST(ChatTemplate, RefusesMessagesItCannotRender) {
  for (const ChatStyle style : {ChatStyle::kChatMl, ChatStyle::kQwen3}) {
    const ChatTemplate chat(style);
    const auto refused = [&](const Messages& messages) {
      return ErrorOf([&] { chat.Render(messages, false); });
    };
    EXPECT_TRUE(Has(refused({}), "at least one message"));
    EXPECT_TRUE(
        Has(refused({{"user", "A"}, {"tool", "B"}}), "messages[1].role"));
    EXPECT_TRUE(Has(refused({{"tool", "B"}}), "tool calls are not supported"));
    EXPECT_TRUE(Has(refused({{"User\n", "A"}}), "User\\x0A"));
  }
}

}  // namespace
}  // namespace kvlab
