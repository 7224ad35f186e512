#include "common/loader/chat.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

constexpr std::uint64_t kMaxTemplateBytes = 16'000'000;
constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kThinkStart = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view StripLeft(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view StripRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

/// The text before the first `mark`, all of it if there is none.
std::string_view Before(std::string_view text, std::string_view mark) {
  return text.substr(0, text.find(mark));
}

/// The text after the last `mark`, all of it if there is none.
std::string_view After(std::string_view text, std::string_view mark) {
  const std::size_t at = text.rfind(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

/// `chat_template` of a JSON file, nullopt if the file or the field is absent.
std::optional<std::string> TemplateOfJson(const std::filesystem::path& file) {
  if (!HasEntry(file)) return std::nullopt;
  const Json json = ReadJsonFile(file, kMaxTemplateBytes);
  const JsonFields fields(json, PathText(file));
  const Json* value = fields.FindNonNull("chat_template");
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (value->is_array()) {
    for (const Json& entry : *value) {
      if (entry.is_object() && entry.contains("name") &&
          entry["name"] == "default" && entry.contains("template") &&
          entry["template"].is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  fields.Refuse("chat_template",
                "text, or a list with an entry named \"default\"",
                JsonText(*value));
}

/// What a template says as the system where the conversation does not: a whole
/// system turn in one literal, '<|im_start|>system\nYou are ...<|im_end|>\n'.
std::string DefaultSystem(std::string_view jinja) {
  for (const std::string_view newline : {"\\n", "\n"}) {
    const std::string start = StrCat(kStart, "system", newline);
    // Every <|im_end|> closes the last start before it, so that no part of a
    // hostile template is searched twice.
    std::string_view rest = jinja;
    for (std::size_t end = rest.find(kEnd); end != std::string_view::npos;
         end = rest.find(kEnd)) {
      const std::string_view part = rest.substr(0, end);
      rest.remove_prefix(end + kEnd.size());
      const std::size_t at = part.rfind(start);
      if (at == std::string_view::npos) continue;
      const std::string_view text = part.substr(at + start.size());
      // A quote or a brace ends the literal: the system's words come from the
      // conversation then.
      if (!text.empty() &&
          text.find_first_of("'\"{}\\") == std::string_view::npos) {
        return std::string(text);
      }
    }
  }
  return "";
}

void CheckRoles(std::span<const ChatMessage> messages) {
  if (messages.empty()) {
    Fail("messages: expected at least one message, found none");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    Fail("messages[", i, "].role: expected system, user or assistant, found \"",
         Printable(role), "\"",
         role == "tool" ? "; tool calls are not supported" : "");
  }
}

/// True for a user turn that really is a tool's answer, which in Qwen3's eyes
/// does not end the assistant's train of thought.
bool IsToolResponse(const ChatMessage& message) {
  return message.content.starts_with("<tool_response>") &&
         message.content.ends_with("</tool_response>");
}

/// Position of the last question a user asked; the last message if none did.
std::size_t LastQuestion(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !IsToolResponse(messages[i])) return i;
  }
  return messages.size() - 1;
}

/// An assistant turn's text as Qwen3 sees it: thoughts only since the last
/// question, and always a <think> block in the last message.
std::string Qwen3Answer(const ChatMessage& message, bool after_question,
                        bool last) {
  std::string_view answer = message.content;
  std::string_view thought;
  if (message.reasoning) {
    thought = *message.reasoning;
  } else if (Contains(message.content, kThinkEnd)) {
    answer = StripLeft(After(message.content, kThinkEnd));
    thought =
        After(StripRight(Before(message.content, kThinkEnd)), kThinkStart);
  }
  if (!after_question || (!last && thought.empty())) return std::string(answer);
  return StrCat(kThinkStart, "\n", StripLeft(StripRight(thought)), "\n",
                kThinkEnd, "\n\n", StripLeft(answer));
}

}  // namespace

ChatTemplate ChatTemplate::Load(const std::filesystem::path& directory) {
  std::string place = PathText(directory / "chat_template.jinja");
  std::optional<std::string> jinja;
  if (HasEntry(directory / "chat_template.jinja")) {
    jinja = ReadSmallFile(directory / "chat_template.jinja", kMaxTemplateBytes);
  } else {
    for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
      if (jinja) break;
      place = StrCat(PathText(directory / name), ": chat_template");
      jinja = TemplateOfJson(directory / name);
    }
  }
  if (!jinja) {
    Fail(PathText(directory),
         ": expected a chat template in chat_template.jinja or "
         "tokenizer_config.json, found none; this may be a base model: use "
         "--raw");
  }
  const auto refuse = [&](std::string_view found) {
    Fail(place, ": expected ChatML or Qwen3's template, found ", found,
         "; use --raw and write the prompt yourself");
  };
  if (!Contains(*jinja, kStart)) refuse("one without <|im_start|>");
  if (Contains(*jinja, "assistant\\n<think>")) {
    refuse("one that always starts with <think>");
  }
  if (Contains(*jinja, "enable_thinking") || Contains(*jinja, kThinkStart)) {
    return ChatTemplate(ChatStyle::kQwen3);
  }
  return ChatTemplate(ChatStyle::kChatMl, DefaultSystem(*jinja));
}

std::string ChatTemplate::Render(std::span<const ChatMessage> messages,
                                 bool thinking,
                                 bool add_generation_prompt) const {
  CheckRoles(messages);
  std::string out;
  const auto turn = [&](std::string_view role, std::string_view text) {
    out.append(kStart).append(role).append("\n");
    out.append(text).append(kEnd).append("\n");
  };
  if (!default_system_.empty() && messages[0].role != "system") {
    turn("system", default_system_);
  }
  const std::size_t question = LastQuestion(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (style_ == ChatStyle::kQwen3 && message.role == "assistant") {
      turn("assistant",
           Qwen3Answer(message, i > question, i + 1 == messages.size()));
    } else {
      turn(message.role, message.content);
    }
  }
  if (add_generation_prompt) {
    out.append(kStart).append("assistant\n");
    if (has_thinking() && !thinking) {
      out.append(kThinkStart).append("\n\n").append(kThinkEnd).append("\n\n");
    }
  }
  return out;
}

}  // namespace kvlab
