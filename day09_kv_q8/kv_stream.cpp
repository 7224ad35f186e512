#include "day09_kv_q8/kv_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "common/attention/online_softmax.h"
#include "common/attention/tile_reader.h"
#include "common/base/error.h"
#include "common/base/text.h"

namespace kvlab {
namespace {

static_assert(std::endian::native == std::endian::little,
              "streams are little-endian");

constexpr char kMagic[8] = {'K', 'V', 'S', 'T', 'R', 'E', 'A', 'M'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kUnknownTokens = ~std::uint64_t{0};
// No real model has more; a damaged header must not make us allocate.
constexpr std::uint32_t kMaxHeadDim = 1024;
constexpr std::uint32_t kMaxGroup = 256;

/// Reads whole values from a stream and knows how far it came.
class Reader {
 public:
  explicit Reader(const ReadBytes& read) : read_(read) {}

  /// Fills `to` or throws.
  template <typename T>
  void Fill(std::span<T> to, const char* what) {
    const std::span<std::byte> bytes = std::as_writable_bytes(to);
    if (read_(bytes) < bytes.size()) {
      Fail("KV stream: it ends in ", what, " after ", tokens,
           " whole tokens; the writer did not finish");
    }
  }
  template <typename T>
  T One(const char* what) {
    T value{};
    Fill(std::span(&value, 1), what);
    return value;
  }

  std::int64_t tokens = 0;  // of whole blocks

 private:
  const ReadBytes& read_;
};

std::uint32_t Between(Reader& reader, const char* what, std::uint32_t low,
                      std::uint32_t high) {
  const auto value = reader.One<std::uint32_t>("its header");
  if (value < low || value > high) {
    Fail("KV stream: ", what, ": expected ", low, " to ", high, ", found ",
         value, "; is this a file of --produce?");
  }
  return value;
}

KvStreamHeader ReadHeader(Reader& reader) {
  char magic[8];
  reader.Fill(std::span<char>(magic), "its header");
  if (!std::equal(magic, magic + 8, kMagic)) {
    Fail(
        "KV stream: it does not begin with KVSTREAM; is this a file of "
        "--produce?");
  }
  KvStreamHeader header;
  Between(reader, "version", kVersion, kVersion);
  header.format =
      Between(reader, "KV format", 0, 1) == 0 ? KvFormat::kF32 : KvFormat::kQ8;
  header.head_dim = static_cast<int>(Between(reader, "d", 1, kMaxHeadDim));
  header.group = static_cast<int>(Between(reader, "query heads", 1, kMaxGroup));
  const auto tokens = reader.One<std::uint64_t>("its header");
  if (tokens == 0 || (tokens != kUnknownTokens &&
                      tokens > std::numeric_limits<std::int32_t>::max())) {
    Fail("KV stream: n: expected 1 to 2^31 - 1 or all bits set, found ",
         tokens);
  }
  header.tokens =
      tokens == kUnknownTokens ? -1 : static_cast<std::int64_t>(tokens);
  header.queries.resize(static_cast<std::size_t>(header.group) *
                        header.head_dim);
  reader.Fill(std::span(header.queries), "its queries");
  for (const float x : header.queries) {
    if (std::isfinite(x)) continue;
    Fail("KV stream: its queries hold ", x, "; the stream is damaged");
  }
  return header;
}

/// Memory for one block, seen as the KV head of a cache.
class Block {
 public:
  explicit Block(const KvStreamHeader& header)
      : stride_(QueryStride(header.head_dim)) {
    view_ = {.format = header.format,
             .tokens = kTileTokens,
             .head_dim = header.head_dim,
             .stride = stride_};
    const auto size = static_cast<std::size_t>(kTileTokens) * stride_;
    if (header.format == KvFormat::kF32) {
      floats_.resize(2 * size);
      view_.keys = floats_.data();
      view_.values = floats_.data() + size;
    } else {
      codes_.resize(2 * size);
      scales_.resize(2 * kTileTokens);
      view_.key_codes = codes_.data();
      view_.value_codes = codes_.data() + size;
      view_.key_scales = scales_.data();
      view_.value_scales = scales_.data() + kTileTokens;
    }
  }

  const KvHeadView& view() const { return view_; }

  /// Reads `count` rows of keys, then of values.
  void Read(Reader& reader, int count) {
    const std::size_t plane = static_cast<std::size_t>(kTileTokens) * stride_;
    for (int p = 0; p < 2; ++p) {
      for (int t = 0; t < count; ++t) {
        const std::size_t row =
            p * plane + static_cast<std::size_t>(t) * stride_;
        if (view_.format == KvFormat::kF32) {
          ReadRow(reader, &floats_[row]);
        } else {
          ReadRow(reader, &codes_[row]);
        }
      }
      if (view_.format == KvFormat::kQ8) {
        const std::span<float> scales(&scales_[p * kTileTokens], count);
        reader.Fill(scales, "a block");
        // A scale is max|x| / 127 of finite numbers.
        constexpr float kMost = std::numeric_limits<float>::max() / 127.0f;
        for (const float s : scales) Require(s >= 0 && s <= kMost, reader);
      }
    }
  }

 private:
  void ReadRow(Reader& reader, float* row) {
    const std::span<float> elements(row, view_.head_dim);
    reader.Fill(elements, "a block");
    for (const float x : elements) Require(std::isfinite(x), reader);
  }
  void ReadRow(Reader& reader, std::int8_t* row) {
    const std::span<std::int8_t> codes(row, view_.head_dim);
    reader.Fill(codes, "a block");
    for (const std::int8_t code : codes) Require(code != -128, reader);
  }
  /// What the cache refuses, the stream refuses too.
  static void Require(bool good, const Reader& reader) {
    if (good) return;
    Fail("KV stream: the block after ", Count(reader.tokens, "token"),
         " holds a number that no cache has (not finite, the code -128, "
         "or a scale beyond those of floats); the stream is damaged");
  }

  int stride_;
  KvHeadView view_;
  std::vector<float> floats_;
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_;
};

template <typename T>
void Put(const WriteBytes& write, std::span<const T> values) {
  write(std::as_bytes(values));
}
void PutNumber(const WriteBytes& write, std::uint32_t value) {
  Put<std::uint32_t>(write, {&value, 1});
}

}  // namespace

void WriteKvStream(const AttendInput& input, bool say_tokens,
                   const WriteBytes& write) {
  const KvHeadView& kv = input.kv;
  const int d = kv.head_dim;
  const bool q8 = kv.format == KvFormat::kQ8;
  Put<char>(write, kMagic);
  PutNumber(write, kVersion);
  PutNumber(write, q8 ? 1 : 0);
  PutNumber(write, static_cast<std::uint32_t>(d));
  PutNumber(write, static_cast<std::uint32_t>(input.group));
  const std::uint64_t tokens =
      say_tokens ? static_cast<std::uint64_t>(kv.tokens) : kUnknownTokens;
  Put<std::uint64_t>(write, {&tokens, 1});
  for (int g = 0; g < input.group; ++g) {
    Put<float>(write, {input.Query(g), static_cast<std::size_t>(d)});
  }
  for (int t = 0; t < kv.tokens; t += kTileTokens) {
    const int count = kv.TileTokens(t);
    PutNumber(write, static_cast<std::uint32_t>(count));
    const auto rows = [&](const auto* first) {
      for (int i = 0; i < count; ++i) {
        Put(write, std::span(first + std::int64_t{i} * kv.stride, d));
      }
    };
    if (q8) {
      rows(kv.KeyCodes(t));
      Put<float>(write, {kv.key_scales + t, static_cast<std::size_t>(count)});
      rows(kv.ValueCodes(t));
      Put<float>(write, {kv.value_scales + t, static_cast<std::size_t>(count)});
    } else {
      rows(kv.Key(t));
      rows(kv.Value(t));
    }
  }
  PutNumber(write, 0);
}

KvStreamResult AttendToStream(const Primitives& primitives,
                              const ReadBytes& read) {
  Reader reader(read);
  KvStreamResult result;
  result.header = ReadHeader(reader);
  const KvStreamHeader& header = result.header;
  const int d = header.head_dim;
  Block block(header);
  const int stride = block.view().stride;

  struct Head {
    std::vector<float> query;  // [stride], padded with zeros
    OnlineSoftmax softmax;
    std::array<float, kTileTokens> tile = {};  // scores, then weights
  };
  std::vector<Head> heads;
  for (int g = 0; g < header.group; ++g) {
    heads.push_back({std::vector<float>(stride), OnlineSoftmax(stride)});
    std::copy_n(&header.queries[static_cast<std::size_t>(g) * d], d,
                heads[g].query.begin());
  }
  TileReader tiles(primitives, block.view());
  std::vector<float*> scores;
  std::vector<TileSum> sums;
  for (Head& head : heads) {
    tiles.Add(head.query.data());
    scores.push_back(head.tile.data());
    sums.push_back({head.tile.data(), head.softmax.acc.data()});
  }

  // The loop of stages 2 and 3, over one block that is read anew each time.
  // [arriving]
  for (bool last = false;;) {
    const auto count =
        static_cast<int>(Between(reader, "tokens of a block", 0, kTileTokens));
    if (count == 0) break;
    if (last) {
      Fail("KV stream: a block follows a short one after ",
           Count(reader.tokens, "token"),
           "; only the last may have fewer than 32");
    }
    last = count < kTileTokens;
    block.Read(reader, count);
    tiles.Scores(0, count, 0, scores);
    for (Head& head : heads) {
      head.softmax.Weigh(primitives, std::span(head.tile.data(), count));
    }
    tiles.AddValues(0, count, sums);
    reader.tokens += count;
  }
  // [arriving]

  result.tokens = reader.tokens;
  if (result.tokens == 0) Fail("KV stream: it holds no token");
  if (header.tokens >= 0 && result.tokens != header.tokens) {
    Fail("KV stream: its header promises ", Count(header.tokens, "token"), ", ",
         result.tokens, " arrived");
  }
  for (const Head& head : heads) {
    for (int i = 0; i < d; ++i) {
      result.out.push_back(head.softmax.acc[i] / head.softmax.S);
      if (std::isfinite(result.out.back())) continue;
      Fail("KV stream: the output is ", result.out.back(),
           ": its numbers overflow float32; the stream is damaged");
    }
  }

  return result;
}

}  // namespace kvlab
