/// \file
/// Online softmax over keys and values that arrive (lesson 8-2): a stream of
/// one KV head, and the attention that eats it block by block.
///
/// The format, little-endian, written by `day09_streaming --produce`:
///
/// | bytes      | what                                                        |
/// |------------|-------------------------------------------------------------|
/// | 8          | "KVSTREAM"                                                  |
/// | 4          | version, 1                                                  |
/// | 4          | KV format: 0 is f32, 1 is q8                                |
/// | 4          | d, elements of a row                                        |
/// | 4          | query heads of the group                                    |
/// | 8          | n, tokens to come; all bits set if that is not known        |
/// | 4 d each   | the queries, f32                                            |
/// | then blocks of up to 32 tokens, only the last shorter:                   |
/// | 4          | tokens of the block; 0 ends the stream, what follows is not |
/// |            | read                                                        |
/// | rows       | f32: K [tokens][d], V [tokens][d]                           |
/// |            | q8: K codes, K scales [tokens] f32, V codes, V scales       |
///
/// A reader needs memory for one block, whatever n: nothing of the stream is
/// kept but M, S and acc of each query head.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/attention/attention_stage.h"

namespace kvlab {

/// What stands at the beginning of a stream.
struct KvStreamHeader {
  KvFormat format = KvFormat::kF32;
  int head_dim = 0;
  int group = 0;               ///< query heads
  std::int64_t tokens = -1;    ///< n; -1 if not known
  std::vector<float> queries;  ///< [group][head_dim]
};

/// Takes the next bytes of a stream: fills `to` as far as there are any and
/// returns how many it got.
using ReadBytes = std::function<std::size_t(std::span<std::byte> to)>;
using WriteBytes = std::function<void(std::span<const std::byte> from)>;

/// Writes a KV head with the queries of `input` as a stream. `say_tokens` puts
/// n into the header.
void WriteKvStream(const AttendInput& input, bool say_tokens,
                   const WriteBytes& write);

/// What a stream gave.
struct KvStreamResult {
  KvStreamHeader header;
  std::int64_t tokens = 0;  ///< that arrived
  std::vector<float> out;   ///< [group][head_dim]
};

/// Attends over a stream while it arrives; bit-equal to online_softmax or
/// q8_single_pass with tile 32 over the same head in memory. Throws Error on
/// anything but a whole stream, saying how many tokens arrived.
KvStreamResult AttendToStream(const Primitives& primitives,
                              const ReadBytes& read);

}  // namespace kvlab
