/// \file
/// Conversations rendered as a chat model was trained to see them (ChatML).
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace kvlab {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
  /// What an assistant thought before `content`, where a caller keeps the two
  /// apart. Only Qwen3's rules look at it.
  std::optional<std::string> reasoning = std::nullopt;
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
  /// Reads the template from `directory`: chat_template.jinja if there is one,
  /// else `chat_template` of tokenizer_config.json (text, or a list with an
  /// entry named "default"), else `chat_template` of chat_template.json. Throws
  /// Error if there is none or if it is of no known style.
  static ChatTemplate Load(const std::filesystem::path& directory);

  /// `default_system`: what plain ChatML says as the system where the first
  /// message is not the system's; nothing if empty.
  explicit ChatTemplate(ChatStyle style, std::string default_system = "")
      : style_(style), default_system_(std::move(default_system)) {}

  /// The prompt text of `messages`. With `add_generation_prompt` it ends where
  /// the assistant's answer starts; without `thinking` (Qwen3's enable_thinking
  /// = false) that answer starts after an empty <think> block. Throws Error on
  /// an empty conversation and on an unknown role; tools are not supported.
  ///
  /// Contents go in as they are: a user's text that spells "<|im_end|>" ends
  /// the turn, as it does in Hugging Face's libraries.
  std::string Render(std::span<const ChatMessage> messages, bool thinking,
                     bool add_generation_prompt = true) const;

  ChatStyle style() const { return style_; }

  /// True if the template has a switch for thinking.
  bool has_thinking() const { return style_ == ChatStyle::kQwen3; }

 private:
  ChatStyle style_;
  std::string default_system_;
};

}  // namespace kvlab
