/// \file
/// The contrast to stage 3 as a program: q8 attention that looks for the
/// maximum first.
#include <CLI/CLI.hpp>

#include "common/lab/stage_main.h"
#include "day09_kv_q8/two_pass.h"

int main(int argc, char** argv) {
  bool rescan = false;
  return kvlab::StageMain(
      argc, argv,
      {.name = "day09_two_pass",
       .description = "The contrast to stage 3: q8 attention that finds the "
                      "maximum before "
                      "it weights the first value.",
       .kv = kvlab::KvFormat::kQ8,
       .make_stage =
           [&rescan](const kvlab::StageSettings& settings) {
             return std::make_unique<kvlab::TwoPass>(settings.primitives,
                                                     rescan);
           },
       .declare_options =
           [&rescan](CLI::App& app) {
             app.add_flag("--rescan", rescan,
                          "Store no scores: compute them twice");
           }});
}
