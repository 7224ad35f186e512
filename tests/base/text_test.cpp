#include "common/base/text.h"

#include <gtest/gtest.h>

namespace kvlab {
namespace {

TEST(Text, WritesNumbersForPeople) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(123456), "123,456");
  EXPECT_EQ(WithCommas(18446744073709551615u), "18,446,744,073,709,551,615");
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(1024 * 1024 - 1), "1.0 MiB");  // not 1024.0 KiB
  EXPECT_EQ(HumanBytes(std::uint64_t{5} << 30), "5.0 GiB");
  EXPECT_EQ(HumanBytes(std::uint64_t{5} << 50), "5120.0 TiB");
}

TEST(Text, CountsOneAndMany) {
  EXPECT_EQ(Count(0, "token"), "0 tokens");
  EXPECT_EQ(Count(1, "token"), "1 token");
  EXPECT_EQ(Count(2061, "token"), "2061 tokens");
  EXPECT_EQ(CountWithCommas(1, "query head"), "1 query head");
  EXPECT_EQ(CountWithCommas(2061, "query head"), "2,061 query heads");
}

}  // namespace
}  // namespace kvlab
