#include "common/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/resource.h>
#include <unistd.h>
#endif

#include "common/base/error.h"

namespace kvlab {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 7, 16}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 31, 1000}) {
      for (const std::int64_t grain : {1, 7, 2000}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
        pool.ParallelFor(count, grain, [&](std::int64_t a, std::int64_t b) {
          ASSERT_LT(a, b);
          for (; a < b; ++a) ++seen[static_cast<std::size_t>(a)];
        });
        for (const auto& n : seen) ASSERT_EQ(n, 1);
      }
    }
  }
}

TEST(ThreadPool, UsesItsWorkers) {
  ThreadPool pool(2);
  // Two ranges that wait for each other can only end on two threads.
  std::atomic<int> inside = 0;
  pool.ParallelFor(2, 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 2);
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.ParallelFor(100, 1,
                                  [](std::int64_t a, std::int64_t) {
                                    if (a % 10 == 0) Fail("range ", a);
                                  }),
                 Error);
    std::atomic<std::int64_t> sum = 0;
    pool.ParallelFor(100, 1, [&](std::int64_t a, std::int64_t b) {
      for (; a < b; ++a) sum += a;
    });
    EXPECT_EQ(sum, 4950);
  }
}

// ThreadSanitizer refuses to start threads in a forked process.
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
/// Asks for a team of 8 while the system grants one thread more each time, so
/// that every possible number of them is started before one is refused. Prints
/// the last Error and ends the process; aborts if a thread is left behind.
[[noreturn]] void AskForMoreThanTheSystemGrants() {
  // The limit does not hold for root; a sandbox without other users has none.
  if (::setuid(65534) != 0) std::perror("setuid");
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  for (limit.rlim_cur = 1;; ++limit.rlim_cur) {
    ::setrlimit(RLIMIT_NPROC, &limit);
    try {
      const ThreadPool pool(8);
      std::_Exit(pool.threads());
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
  }
}

TEST(ThreadPool, SaysHowManyThreadsTheSystemRefused) {
  EXPECT_EXIT(AskForMoreThanTheSystemGrants(), testing::ExitedWithCode(8),
              "8 threads: only 7 could be started: .+; use fewer");
}
#endif

TEST(PhysicalCores, AtLeastOne) { EXPECT_GE(PhysicalCores(), 1); }

}  // namespace
}  // namespace kvlab
