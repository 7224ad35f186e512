#include "common/lab/text_table.h"

#include <gtest/gtest.h>

namespace kvlab {
namespace {

TEST(TextTableTest, AlignsItsColumns) {
  TextTable table("rll");
  table.Add({"n", "name", "what"});
  table.Add({"1,024", "\u0120f", "a"});  // one column, two bytes
  table.Add({"7", "", ""});
  EXPECT_EQ(table.Text(1),
            "     n  name  what\n"
            " 1,024  \u0120f    a\n"
            "     7\n");
  EXPECT_EQ(TextTable("l").Text(), "");
}

}  // namespace
}  // namespace kvlab
