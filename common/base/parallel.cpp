#include "common/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

#include "common/base/error.h"

namespace kvlab {

struct ThreadPool::State {
  /// Also ends the workers of a pool whose constructor could not start all.
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  std::mutex mutex;
  std::condition_variable wake;  // a new loop, or the end
  std::condition_variable done;  // the last worker left the loop
  std::vector<std::thread> workers;
  bool stop = false;
  std::uint64_t loop_id = 0;
  int inside = 0;  // workers that have not left the current loop

  // The current loop.
  const std::function<void(std::int64_t, std::int64_t)>* body = nullptr;
  std::int64_t count = 0;
  std::int64_t grain = 1;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;  // guarded by mutex

  /// Takes ranges until none is left.
  void Work() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain);
      if (begin >= count) return;
      try {
        (*body)(begin, std::min(begin + grain, count));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void Worker() {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || loop_id != seen; });
        if (stop) return;
        seen = loop_id;
      }
      Work();
      const std::lock_guard lock(mutex);
      if (--inside == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  KVLAB_CHECK_GE(threads, 1);
  try {
    while (this->threads() < threads) {
      state_->workers.emplace_back([state = state_.get()] { state->Worker(); });
    }
  } catch (const std::system_error& e) {
    Fail(threads, " threads: only ", this->threads(),
         " could be started: ", e.code().message(), "; use fewer (--threads)");
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const {
  return static_cast<int>(state_->workers.size()) + 1;
}

void ThreadPool::ParallelFor(
    std::int64_t count, std::int64_t grain,
    const std::function<void(std::int64_t, std::int64_t)>& body) {
  KVLAB_CHECK_GE(grain, 1);
  if (count <= 0) return;
  if (count <= grain || state_->workers.empty()) {
    body(0, count);
    return;
  }
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.body = &body;
    s.count = count;
    // About four ranges a thread, so that an interrupted one costs little.
    s.grain = std::max(grain, count / (4 * threads()));
    s.next = 0;
    s.error = nullptr;
    s.inside = static_cast<int>(s.workers.size());
    ++s.loop_id;
  }
  s.wake.notify_all();
  s.Work();
  std::unique_lock lock(s.mutex);
  s.done.wait(lock, [&] { return s.inside == 0; });
  if (s.error) std::rethrow_exception(s.error);
}

int PhysicalCores() {
#ifdef __linux__
  // Each CPU's file lists the CPUs that share its core; count distinct lists
  // among the CPUs this process may use.
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream file(StrCat("/sys/devices/system/cpu/cpu", cpu,
                                "/topology/thread_siblings_list"));
      std::string siblings;
      if (!std::getline(file, siblings)) siblings = StrCat("cpu", cpu);
      cores.insert(siblings);
    }
    if (!cores.empty()) return static_cast<int>(cores.size());
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace kvlab
