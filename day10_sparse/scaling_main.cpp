#include <iostream>

#include "common/base/text.h"
#include "common/lab/cli.h"
#include "common/lab/interrupt.h"
#include "day10_sparse/scaling.h"
int main(int argc, char** argv) {
  using namespace kvlab;
  ThreadPool pool(1);
  ScalingOptions o;
  if (argc > 1) o.heads = atoi(argv[1]);
  if (argc > 2) o.pack_probes = atoi(argv[2]);
  o.rounds = 9;
  for (int n : {512, 2048, 4096, 8192, 32768, 131072}) {
    auto p = MeasureScaling(o, n, PrimitivesFor(BestIsa()), pool, [] {});
    std::cout << n << " f32 " << p.exact_f32 * 1e6 << " q8 " << p.exact_q8 * 1e6
              << " sparse " << p.sparse * 1e6 << " probe " << p.probe * 1e6
              << " select " << p.select * 1e6 << " attend " << p.attend * 1e6
              << " gain " << p.gain << " (" << p.gain_low << "-" << p.gain_high
              << ") limit " << p.ByteLimit() << std::endl;
  }
}
