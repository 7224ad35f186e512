/// The KV stream: what was written attends as in memory; anything but a whole
/// stream is refused.
#include "day09_kv_q8/kv_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/error.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "tests/support/compare.h"
#include "tests/support/kv.h"

namespace kvlab {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Written(const AttendInput& input, bool say_tokens) {
  Bytes bytes;
  WriteKvStream(input, say_tokens, [&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  });
  return bytes;
}

KvStreamResult Read(std::span<const std::byte> bytes) {
  return AttendToStream(PrimitivesFor(BestIsa()), [&](std::span<std::byte> to) {
    const std::size_t count = std::min(to.size(), bytes.size());
    std::ranges::copy(bytes.first(count), to.begin());
    bytes = bytes.subspan(count);
    return count;
  });
}

std::string ErrorOf(std::span<const std::byte> bytes) {
  try {
    Read(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kExitFailed);
    return error.what();
  }
  return "no error";
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void Put(Bytes& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, 4);
}

constexpr std::size_t kHeaderBytes = 32;  // without the queries

TEST(KvStream, EqualsTheStageInMemoryBitForBit) {
  for (const int n : {1, 31, 32, 33, 64, 100}) {
    for (const int d : {8, 80, 128}) {
      for (const bool say_tokens : {false, true}) {
        TestHead head(n, d, 2, 1);
        std::vector<float> out(std::size_t(2) * d);
        const Primitives& primitives = PrimitivesFor(BestIsa());
        OnlineSoftmaxStage(primitives, 32).Attend(head.Input(), out, nullptr);
        const KvStreamResult f32 = Read(Written(head.Input(), say_tokens));
        EXPECT_TRUE(SameBits(f32.out, out)) << "f32, n " << n << ", d " << d;
        EXPECT_EQ(f32.tokens, n);
        EXPECT_EQ(f32.header.tokens, say_tokens ? n : -1);
        Q8SinglePass(primitives, 32).Attend(head.Q8Input(), out, nullptr);
        const KvStreamResult q8 = Read(Written(head.Q8Input(), say_tokens));
        EXPECT_TRUE(SameBits(q8.out, out)) << "q8, n " << n << ", d " << d;
        EXPECT_EQ(q8.header.format, KvFormat::kQ8);
      }
    }
  }
}

/// Cut anywhere, it says how many whole tokens had arrived.
TEST(KvStream, ATruncatedStreamSaysHowFarItCame) {
  TestHead head(100, 16, 2, 2);
  for (const bool q8 : {false, true}) {
    const Bytes whole =
        Written(q8 ? head.Q8Input() : head.Input(), /*say_tokens=*/false);
    const std::size_t head_bytes = kHeaderBytes + 2 * 16 * 4;
    const std::size_t row_bytes = q8 ? 2 * (16 + 4) : 2 * 16 * 4;
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
      const std::string error = ErrorOf(std::span(whole).first(cut));
      const std::size_t tokens =
          cut < head_bytes ? 0 : (cut - head_bytes) / (4 + 32 * row_bytes) * 32;
      // The last block has 4 tokens, so its end comes earlier.
      const std::size_t expected = cut >= whole.size() - 4 ? 100 : tokens;
      ASSERT_TRUE(Has(error, StrCat("after ", expected, " whole tokens")))
          << "cut at " << cut << ": " << error;
    }
  }
}

TEST(KvStream, RefusesWhatIsNoStream) {
  TestHead head(40, 16, 1, 3);
  const Bytes good = Written(head.Input(), true);
  const Bytes good_q8 = Written(head.Q8Input(), true);
  const std::size_t first_block = kHeaderBytes + 16 * 4;
  const auto damaged = [](Bytes bytes, std::size_t at, std::uint32_t value) {
    Put(bytes, at, value);
    return ErrorOf(bytes);
  };
  EXPECT_EQ(ErrorOf(good), "no error");
  EXPECT_EQ(ErrorOf(good_q8), "no error");
  EXPECT_TRUE(Has(damaged(good, 0, 0), "does not begin with KVSTREAM"));
  EXPECT_TRUE(Has(damaged(good, 8, 2), "version"));
  EXPECT_TRUE(Has(damaged(good, 12, 7), "KV format"));
  EXPECT_TRUE(Has(damaged(good, 16, 0), "d: expected 1"));
  EXPECT_TRUE(Has(damaged(good, 16, 0xFFFFFFFF), "d: expected 1"));
  EXPECT_TRUE(Has(damaged(good, 20, 0xFFFFFFFF), "query heads"));
  EXPECT_TRUE(Has(damaged(good, 24, 41), "promises 41 tokens, 40 arrived"));
  EXPECT_TRUE(Has(damaged(good, 28, 1), "n: expected"));
  EXPECT_TRUE(Has(damaged(good, first_block, 33), "tokens of a block"));
  EXPECT_TRUE(Has(damaged(good, first_block, 0), "holds no token"));
  EXPECT_TRUE(Has(damaged(good, kHeaderBytes, 0x7FC00000), "queries hold"));
  // 1e37: times 127 it is no float.
  EXPECT_TRUE(Has(damaged(good_q8, first_block + 4 + 32 * 16,
                          std::bit_cast<std::uint32_t>(1e37f)),
                  "no cache has"));
  // Scores that overflow are the stream's fault, not a model's.
  EXPECT_TRUE(
      Has(damaged(good, kHeaderBytes, std::bit_cast<std::uint32_t>(3.3e38f)),
          "overflow float32"));
  for (const std::uint32_t bad : {0x7FC00000u, 0x7F800000u}) {
    EXPECT_TRUE(Has(damaged(good, first_block + 4, bad), "no cache has"));
    EXPECT_TRUE(
        Has(damaged(good, first_block + 4 + 32 * 16 * 4, bad), "no cache has"));
    EXPECT_TRUE(
        Has(damaged(good_q8, first_block + 4 + 32 * 16, bad), "no cache has"));
  }
  EXPECT_TRUE(Has(damaged(good_q8, first_block + 4, 0x80), "no cache has"));
  // A short block before the end: tiles would not be those of the memory form.
  TestHead two(40, 16, 1, 4);
  Bytes joined = Written(two.Input(), false);
  const Bytes again(joined.begin() + std::ptrdiff_t(first_block), joined.end());
  joined.resize(joined.size() - 4);
  joined.insert(joined.end(), again.begin(), again.end());
  EXPECT_TRUE(Has(ErrorOf(joined), "a block follows a short one"));
}

}  // namespace
}  // namespace kvlab
