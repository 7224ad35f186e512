#include "common/lab/interrupt.h"

#include <csignal>

#include "common/base/error.h"

namespace kvlab {
namespace {

volatile std::sig_atomic_t interrupted = 0;

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
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interrupted() { return interrupted != 0; }

void CheckInterrupted() {
  if (Interrupted()) throw Error("interrupted", kExitInterrupted);
}

}  // namespace kvlab
