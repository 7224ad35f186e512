#include "common/base/error.h"

#include <gtest/gtest.h>

namespace kvlab {
namespace {

TEST(Error, CarriesOneLineAndAnExitCode) {
  try {
    FailUsage("--threads ", 0, ": expected at least 1");
    FAIL() << "FailUsage returned";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--threads 0: expected at least 1");
    EXPECT_EQ(error.exit_code(), kExitUsage);
  }
  EXPECT_THROW(Fail("x"), Error);
}

TEST(Printable, KeepsTextAndShowsWhatWouldHarmATerminal) {
  EXPECT_EQ(Printable("Zoë 山 🙂"), "Zoë 山 🙂");
  EXPECT_EQ(Printable("a\nb\x1b[2J"), "a\\x0Ab\\x1B[2J");
  EXPECT_EQ(Printable("\xC2\x9B"), "\\xC2\\x9B");           // a C1 control: CSI
  EXPECT_EQ(Printable("\xC3"), "\\xC3");                    // cut in the middle
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // a surrogate
  EXPECT_EQ(Printable("\xF4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
}

TEST(CheckDeathTest, PrintsBothValues) {
  const int n = 0;
  EXPECT_DEATH(KVLAB_CHECK_GE(n, 1), "n >= 1 \\(0 against 1\\)");
  EXPECT_DEATH(KVLAB_CHECK(n > 0), "check failed: n > 0");
}

}  // namespace
}  // namespace kvlab
