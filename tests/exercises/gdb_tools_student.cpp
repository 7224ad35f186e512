// A student's own program, for gdb_tools_test: it has kv, M and S, no stage.
#include <vector>

#include "common/attention/kv_view.h"

namespace {

[[gnu::noinline]] void Report(const float* key, float S) {
  asm volatile("" : : "r"(key), "r"(&S) : "memory");
}

}  // namespace

int main(int argc, char** /*argv*/) {
  // With an argument: a loop that does not end.
  while (argc > 1) asm volatile("");
  std::vector<float> keys;
  std::vector<float> values;
  for (int i = 0; i < 3 * 16; ++i) {
    keys.push_back(static_cast<float>(i));
    values.push_back(static_cast<float>(-i));
  }
  const kvlab::KvHeadView kv{.tokens = 3,
                             .head_dim = 16,
                             .stride = 16,
                             .keys = keys.data(),
                             .values = values.data()};
  float M = 3.5f;
  float S = 1.25f;
  asm volatile("" : "+m"(M), "+m"(S));
  Report(kv.Key(1), S);
  return 0;
}
