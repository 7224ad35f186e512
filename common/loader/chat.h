/// \file
/// Conversations rendered as a chat model was trained to see them (ChatML).
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace kvlab {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// Which rules a model's template follows. Templates are Jinja programs; the
/// few that this course uses are written out in C++ and recognised by what
/// they contain.
enum class ChatStyle {
  kChatMl,  ///< plain ChatML
  kQwen3,   ///< ChatML with Qwen3's <think> rules
};

/// The chat template of a model directory.
class ChatTemplate {
 public:
  /// Reads `chat_template` from `directory/tokenizer_config.json` or from
  /// `directory/chat_template.jinja`. Throws Error if there is none or if it is
  /// of no known style.
  static ChatTemplate Load(const std::filesystem::path& directory);
  explicit ChatTemplate(ChatStyle style) : style_(style) {}

  /// The prompt text of `messages`. With `add_generation_prompt` it ends where
  /// the assistant's answer starts; without `thinking` (Qwen3's enable_thinking
  /// = false) that answer starts after an empty <think> block. Throws Error on an
  /// unknown role.
  std::string Render(std::span<const ChatMessage> messages, bool thinking,
                     bool add_generation_prompt = true) const;

  /// True if the template has a switch for thinking.
  bool has_thinking() const { return style_ == ChatStyle::kQwen3; }

 private:
  ChatStyle style_;
};

}  // namespace kvlab
