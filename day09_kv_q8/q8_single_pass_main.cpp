/// \file
/// Stage 3 as a program: the needle question with q8 attention in a single
/// pass.
#include "common/lab/stage_main.h"
#include "day09_kv_q8/q8_single_pass.h"

int main(int argc, char** argv) {
  return kvlab::StageMain(
      argc, argv,
      {.name = "day09_q8_single_pass",
       .description =
           "Stage 3: online softmax over int8 keys and values, each byte "
           "read once.",
       .kv = kvlab::KvFormat::kQ8,
       .has_tile = true,
       .make_stage = [](const kvlab::StageSettings& settings) {
         return std::make_unique<kvlab::Q8SinglePass>(settings.primitives,
                                                      settings.tile);
       }});
}
