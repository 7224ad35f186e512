/// \file
/// A lesson's own output: what a program shows of its stage besides the report.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/attention/observer.h"
#include "common/lab/needle_prompt.h"
#include "common/lab/trace.h"

namespace CLI {
class App;
}

namespace kvlab {

/// A run that is over, as a view may describe it.
struct ViewedRun {
  std::string model;
  std::string output;                ///< the model's answer
  std::vector<std::string> tokens;   ///< text of each: prompt, then answer
  std::optional<TokenRange> needle;  ///< where the needle's sentence stands
};

/// Watches the decode steps, as an observer, and shows what it saw. Begin,
/// Print and Contents come in this order, and only if it is wanted.
class StageView : public Observer {
 public:
  /// The option that asks for it: for messages.
  virtual std::string_view option() const = 0;
  /// Declares its options: last, so that they can exclude others.
  virtual void Declare(CLI::App& app) = 0;
  /// True if the options ask for it.
  virtual bool wanted() const = 0;
  /// The option that names its output file, and that file or "".
  virtual std::pair<const char*, std::string> file() const = 0;
  /// Before the work: refuses what cannot be done. Step 0 is the query at
  /// position `prompt_tokens`; a layer or head that the user did not choose is
  /// not in the filter. Throws Error.
  virtual void Begin(const TraceFilter& filter, int prompt_tokens) = 0;
  /// After the report, on stdout, if that is not JSON.
  virtual void Print(const ViewedRun& run) = 0;
  /// Last: what goes into the file, "" if none is named. Throws Error, also if
  /// there was nothing to show.
  virtual std::string Contents(const ViewedRun& run) = 0;
};

}  // namespace kvlab
