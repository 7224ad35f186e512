#include "tests/bench/report.h"

#include <cstdio>

#include "common/lab/interrupt.h"

namespace kvlab::bench {

bool TableReporter::ReportContext(const Context&) {
  char line[200];
  std::snprintf(line, sizeof line, "%-52s %11s %14s %11s  %s\n", "benchmark",
                "time, us", "rate", "limit, us", "share of limit (quartiles)");
  Print(line);
  return true;
}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    const std::string name = run.run_name.function_name;
    char line[200];
    if (run.error_occurred) {
      failed_ = true;
      if (Interrupted()) continue;  // all that follow fail so
      std::snprintf(line, sizeof line, "%-52s %s\n", name.c_str(),
                    run.error_message.c_str());
      Print(line);
      continue;
    }
    const auto counter = [&](const char* key) {
      const auto found = run.counters.find(key);
      return found == run.counters.end() ? 0.0 : found->second.value;
    };
    nlohmann::ordered_json row = {{"name", name}};
    for (const char* key :
         {kSeconds, kLimitSeconds, kShare, kShareLow, kShareHigh, kBytes}) {
      row[key] = counter(key);
    }
    row[kFlops] = counter(kFlops);
    json_.push_back(std::move(row));
    const double seconds = counter(kSeconds);
    const bool by_flops = counter(kFlops) > 0;
    char rate[40];
    std::snprintf(
        rate, sizeof rate, "%.1f %s",
        (by_flops ? counter(kFlops) : counter(kBytes)) / seconds / 1e9,
        by_flops ? "GFLOP/s" : "GB/s   ");
    std::snprintf(line, sizeof line,
                  "%-52s %11.1f %14s %11.1f  %3.0f %% (%.0f-%.0f)\n",
                  name.c_str(), seconds * 1e6, rate,
                  counter(kLimitSeconds) * 1e6, counter(kShare) * 100,
                  counter(kShareLow) * 100, counter(kShareHigh) * 100);
    Print(line);
  }
}

void TableReporter::Print(const std::string& line) {
  text_ += line;
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace kvlab::bench
