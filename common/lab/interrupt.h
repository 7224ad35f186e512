/// \file
/// Ctrl-C, taken at a safe place.
#pragma once

namespace kvlab {

/// While it lives, SIGINT, SIGTERM and SIGHUP only leave a note;
/// CheckInterrupted acts on it. So files are never left half-written and
/// destructors run. A system call that waits (for input, for a pipe's other
/// end) ends with EINTR. A second signal ends the program at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

/// True once a signal has come.
bool Interrupted();

/// Throws Error(kExitInterrupted) once a signal has come.
void CheckInterrupted();

}  // namespace kvlab
