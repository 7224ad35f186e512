#include "common/lab/interrupt.h"

#include <csignal>

#include "common/base/error.h"

namespace kvlab {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void NoteInterrupt(int /*signal*/) { interrupted = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  std::signal(SIGINT, NoteInterrupt);
  std::signal(SIGTERM, NoteInterrupt);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

void CheckInterrupted() {
  if (interrupted != 0) throw Error("interrupted", kExitInterrupted);
}

}  // namespace kvlab
