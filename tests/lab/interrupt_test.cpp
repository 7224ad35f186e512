#include "common/lab/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "common/base/error.h"

namespace kvlab {
namespace {

using ::testing::KilledBySignal;

TEST(Interrupt, OneSignalOnlyLeavesANote) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const InterruptGuard guard;
    EXPECT_FALSE(Interrupted()) << "a new guard begins without a note";
    CheckInterrupted();
    std::raise(number);
    EXPECT_TRUE(Interrupted());
    try {
      CheckInterrupted();
      ADD_FAILURE() << "expected an Error";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), kExitInterrupted);
    }
  }
}

TEST(InterruptTest, NohupOutlivesItsTerminal) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    EXPECT_FALSE(Interrupted());
    std::raise(SIGINT);
    EXPECT_TRUE(Interrupted());
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

/// Says on stderr how far it came, so that a death at the first signal is not
/// taken for one at the second.
[[noreturn]] void RaiseTwice(int first, int second) {
  const InterruptGuard guard;
  std::raise(first);
  std::fputs("the first left a note", stderr);
  std::raise(second);
  std::_Exit(kExitDone);
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProgramAtOnce) {
  EXPECT_EXIT(RaiseTwice(SIGINT, SIGINT), KilledBySignal(SIGINT),
              "^the first left a note$");
  EXPECT_EXIT(RaiseTwice(SIGTERM, SIGTERM), KilledBySignal(SIGTERM),
              "^the first left a note$");
  EXPECT_EXIT(RaiseTwice(SIGINT, SIGTERM), KilledBySignal(SIGTERM),
              "^the first left a note$");
}

TEST(InterruptDeathTest, WithoutAGuardTheFirstSignalEndsTheProgram) {
  const auto raise_after_guard = [] {
    { const InterruptGuard guard; }
    std::raise(SIGINT);
    std::_Exit(kExitDone);
  };
  EXPECT_EXIT(raise_after_guard(), KilledBySignal(SIGINT), "^$");
}

}  // namespace
}  // namespace kvlab
