/// \file
/// Stage 1 as a program: answers the needle question with three-pass attention.
#include "common/lab/stage_main.h"
#include "day09_kv_q8/three_pass.h"

int main(int argc, char** argv) {
  return kvlab::StageMain(
      argc, argv,
      {.name = "day09_three_pass",
       .description = "Stage 1: attention in three passes (scores, softmax, "
                      "weighted V) over an f32 KV cache.",
       .kv = kvlab::KvFormat::kF32,
       .make_stage = [](const kvlab::StageSettings& settings) {
         return std::make_unique<kvlab::ThreePass>(settings.primitives);
       }});
}
