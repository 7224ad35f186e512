/// \file
/// Byte-level BPE from tokenizer.json, token for token what Hugging Face's
/// `tokenizers` gives.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// A loaded tokenizer.json. Safe to use from several threads.
class Tokenizer {
 public:
  /// Reads `file`. Throws Error naming the file and the field that is missing,
  /// broken or of a kind this tokenizer does not implement. The post-processor
  /// is not used: it adds BOS and EOS, and a chat template that has a BOS of
  /// its own would then give two.
  static Tokenizer Load(const std::filesystem::path& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Text (UTF-8) to ids: added tokens are cut out first, the rest is
  /// normalised to NFC, split by the model's pattern and merged by BPE. No BOS
  /// or EOS is added. As in Hugging Face's libraries, text that spells a
  /// special token ("<|im_end|>") becomes that token, whoever wrote it. Throws
  /// Error if `text` is not UTF-8 or has a byte that the vocabulary lacks.
  std::vector<int> Encode(std::string_view text) const;

  /// Ids to text; a byte that belongs to no valid UTF-8 sequence becomes U+FFFD
  /// (one per maximal invalid subpart). An id that has no token gives no text:
  /// models have more rows of logits than tokens. Throws Error on an id < 0.
  std::string Decode(std::span<const int> ids,
                     bool skip_special_tokens = false) const;

  /// The raw bytes of one token (what Decode joins before it checks UTF-8).
  /// Throws Error on an id without a token.
  std::string TokenBytes(int id) const;

  /// The piece as written in the vocabulary (byte-level alphabet). Throws Error
  /// on an id without a token.
  std::string_view Piece(int id) const;

  /// Id of an added token or vocabulary piece with exactly this text.
  std::optional<int> Find(std::string_view token) const;

  /// True if the id is an added token marked special (a control token, which
  /// a reader does not want to see).
  bool IsSpecial(int id) const;

  /// One more than the largest id.
  int size() const;

 private:
  friend class StreamingDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Decodes token by token for a terminal: bytes of an unfinished character
/// are held back until it is whole.
class StreamingDecoder {
 public:
  /// Keeps a reference to `tokenizer`.
  explicit StreamingDecoder(const Tokenizer& tokenizer,
                            bool skip_special_tokens = true);

  /// The text that became certain with this token (may be empty).
  std::string Push(int id);

  /// The text of what was held back (U+FFFD for a character cut in the middle).
  /// Push and Flush joined always equal Decode of the whole.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::string held_;
};

}  // namespace kvlab
