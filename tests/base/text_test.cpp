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

}  // namespace
}  // namespace kvlab
