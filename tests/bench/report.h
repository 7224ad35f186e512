/// \file
/// The results of lab_bench as a table that people read.
#pragma once

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>
#include <string>

namespace kvlab::bench {

/// Counters that a benchmark leaves for the table; times in seconds.
inline constexpr char kSeconds[] = "seconds";
inline constexpr char kLimitSeconds[] = "limit_seconds";
inline constexpr char kShare[] = "share_of_limit";
inline constexpr char kShareLow[] = "share_low";
inline constexpr char kShareHigh[] = "share_high";
inline constexpr char kBytes[] = "bytes";
inline constexpr char kFlops[] = "flops";

/// Prints a line a benchmark as they come and keeps the whole table.
class TableReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;

  /// Everything printed so far.
  const std::string& text() const { return text_; }
  /// The same as an array of objects, times in seconds.
  const nlohmann::ordered_json& json() const { return json_; }
  /// A benchmark reported an error.
  bool failed() const { return failed_; }

 private:
  void Print(const std::string& line);

  std::string text_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
  bool failed_ = false;
};

}  // namespace kvlab::bench
