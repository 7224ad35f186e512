#include "tests/bench/synthetic.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "common/lab/read_memory.h"

namespace kvlab::bench {

WeightRing::WeightRing(const Shapes& shapes, bool cold) : shapes_(shapes) {
  for (const auto& [rows, cols] : shapes) set_elements_ += rows * cols;
  sets_ = RingSize(bytes(), cold);
  elements_.resize(static_cast<std::size_t>(set_elements_ * sets_));
  std::mt19937_64 random(10);
  for (std::size_t i = 0; i < elements_.size(); i += 4) {
    std::uint64_t bits = random();
    for (std::size_t j = i; j < std::min(i + 4, elements_.size()); ++j) {
      // bf16 between 2^-7 and 2^-5, either sign.
      elements_[j] = static_cast<std::uint16_t>((bits & 0x80FFu) | 0x3C00u);
      bits >>= 16;
    }
  }
}

WeightMatrix WeightRing::Matrix(std::int64_t turn, std::size_t i) const {
  const std::uint16_t* data = elements_.data() + turn % sets_ * set_elements_;
  for (std::size_t j = 0; j < i; ++j) {
    data += shapes_[j].first * shapes_[j].second;
  }
  return {.data = data,
          .type = WeightType::kBF16,
          .rows = shapes_[i].first,
          .cols = shapes_[i].second};
}

void WeightRing::Read(ThreadPool& pool, std::int64_t turn) const {
  const auto* data = static_cast<const std::byte*>(Matrix(turn, 0).data);
  pool.ParallelFor(
      bytes(), bytes() / pool.threads() + 1,
      [&](std::int64_t begin, std::int64_t end) {
        benchmark::DoNotOptimize(ReadMemory(data + begin, end - begin));
      });
}

WeightRing::Shapes LayerMatrices(const ModelShape& m) {
  const std::int64_t q = std::int64_t{m.heads} * m.head_dim;
  const std::int64_t kv = std::int64_t{m.kv_heads} * m.head_dim;
  return {{q, m.hidden},
          {kv, m.hidden},
          {kv, m.hidden},
          {m.hidden, q},
          {m.feed_forward, m.hidden},
          {m.feed_forward, m.hidden},
          {m.hidden, m.feed_forward}};
}

WeightRing::Shapes OutputMatrix(const ModelShape& m) {
  return {{m.vocabulary, m.hidden}};
}

}  // namespace kvlab::bench
