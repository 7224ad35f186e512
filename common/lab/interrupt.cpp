#include "common/lab/interrupt.h"

#include <csignal>

#include "common/base/error.h"

namespace kvlab {
namespace {

volatile std::sig_atomic_t interrupted = 0;

/// Ctrl-C, kill, a terminal that is closed.
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

/// The second time at once: the work may be far from its next safe place.
extern "C" void NoteInterrupt(int number) {
  if (interrupted != 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  interrupted = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  struct sigaction action = {};  // no SA_RESTART
  action.sa_handler = NoteInterrupt;
  for (const int number : kSignals) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    // nohup has a program live on without its terminal. (A shell lets those
    // that it starts with & ignore Ctrl-C, but kill -INT is meant for them.)
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const int number : kSignals) {
    struct sigaction now = {};
    sigaction(number, nullptr, &now);
    if (now.sa_handler == NoteInterrupt) std::signal(number, SIG_DFL);
  }
}

bool Interrupted() { return interrupted != 0; }

void CheckInterrupted() {
  if (Interrupted()) throw Error("interrupted", kExitInterrupted);
}

}  // namespace kvlab
