/// \file
/// Stage 2 as a program: the needle question with online softmax.
#include "common/lab/stage_main.h"
#include "day09_kv_q8/online_softmax.h"

int main(int argc, char** argv) {
  return kvlab::StageMain(
      argc, argv,
      {.name = "day09_online_softmax",
       .description = "Stage 2: online softmax, one pass over an f32 KV cache.",
       .kv = kvlab::KvFormat::kF32,
       .has_tile = true,
       .make_stage = [](const kvlab::StageSettings& settings) {
         return std::make_unique<kvlab::OnlineSoftmaxStage>(settings.primitives,
                                                            settings.tile);
       }});
}
