/// \file
/// A small thread pool. Threads share out *outputs* (rows, heads, queries);
/// no sum is ever split, so results do not depend on the thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace kvlab {

/// A fixed team of threads that runs loops. Workers sleep between loops: a
/// spinning barrier collapses as soon as another process shares a core.
class ThreadPool {
 public:
  /// A team of `threads` >= 1, the caller counted among them. Throws Error if
  /// the system does not start that many; none is left running then.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Calls `body(begin, end)` on disjoint ranges that cover [0, count), each
  /// of at least `grain` (the last may be shorter). One range runs on the
  /// calling thread; if count <= grain all of it does. Returns when all are
  /// done. The first exception thrown by a body is rethrown here.
  void ParallelFor(
      std::int64_t count, std::int64_t grain,
      const std::function<void(std::int64_t begin, std::int64_t end)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Number of physical cores that this process may run on, at least 1: the
/// default of --threads (a second hardware thread of a core adds nothing to a
/// loop that is bound by memory reads).
int PhysicalCores();

}  // namespace kvlab
