#include "day10_sparse/scaling_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/gnuplot.h"
#include "common/lab/text_table.h"

namespace kvlab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kColumns = 78;  // of running text

std::string Us(double seconds) {
  const double us = seconds * 1e6;
  return us >= 1000 ? WithCommas(static_cast<std::uint64_t>(us + 0.5))
                    : Fixed(us, us >= 100 ? 0 : 1);
}

std::string Percent(double share) { return Fixed(100 * share, 1); }

/// Four significant figures.
std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

std::string ScalingText(std::span<const ScalingPoint> points) {
  TextTable table("rrrrrrrrrrl");
  table.Add({"tokens", "exact f32", "exact q8", "sparse", "probe", "choose",
             "attend", "q8/sparse", "quartiles", "by bytes", ""});
  for (const ScalingPoint& p : points) {
    table.Add({WithCommas(static_cast<std::uint64_t>(p.tokens)),
               Us(p.exact_f32), Us(p.exact_q8), Us(p.sparse), Us(p.probe),
               Us(p.select), Us(p.attend), Fixed(p.gain, 2),
               StrCat(Fixed(p.gain_low, 2), "-", Fixed(p.gain_high, 2)),
               Fixed(p.ByteLimit(), 2), p.ran_exact ? "ran exact" : ""});
  }
  const double crossover = Crossover(points);
  std::string end;
  if (crossover == 0) {
    end = "Sparse attention is the faster one at every length measured.";
  } else if (crossover < 0) {
    end = StrCat("Sparse attention is the slower one at ",
                 WithCommas(static_cast<std::uint64_t>(points.back().tokens)),
                 " tokens still.");
  } else {
    end = StrCat("Crossover: from about ",
                 WithCommas(static_cast<std::uint64_t>(crossover)),
                 " tokens on sparse attention is the faster one; below, exact "
                 "is.");
  }
  return StrCat(
      "Microseconds of attention for one token and one layer. probe, choose "
      "and\nattend are the steps of sparse; by bytes: what it could gain if "
      "only the bytes\nto be read counted.\n\n",
      table.Text(), '\n', Wrapped(end, kColumns));
}

Json ScalingRows(std::span<const ScalingPoint> points) {
  Json rows = Json::array();
  for (const ScalingPoint& p : points) {
    rows.push_back({{"tokens", p.tokens},
                    {"blocks", p.blocks},
                    {"ran_exact", p.ran_exact},
                    {"exact_f32_us", p.exact_f32 * 1e6},
                    {"exact_q8_us", p.exact_q8 * 1e6},
                    {"sparse_us", p.sparse * 1e6},
                    {"probe_us", p.probe * 1e6},
                    {"select_us", p.select * 1e6},
                    {"attend_us", p.attend * 1e6},
                    {"gain", p.gain},
                    {"gain_low", p.gain_low},
                    {"gain_high", p.gain_high},
                    {"byte_limit", p.ByteLimit()},
                    {"f32_bytes", p.f32_bytes},
                    {"q8_bytes", p.q8_bytes},
                    {"probe_bytes", p.probe_bytes},
                    {"chosen_bytes", p.chosen_bytes}});
  }
  return rows;
}

std::string ScalingPlotScript(std::span<const ScalingPoint> points,
                              const std::string& subtitle) {
  std::string data, tics;
  double least = 1e300, most = 0;
  for (const ScalingPoint& p : points) {
    data += StrCat(p.tokens, ' ', Short(p.exact_f32 * 1e6), ' ',
                   Short(p.exact_q8 * 1e6), ' ', Short(p.sparse * 1e6), ' ',
                   Short(p.probe * 1e6), ' ',
                   Short(p.exact_q8 * 1e6 / p.ByteLimit()), '\n');
    const bool thousands = p.tokens >= 1024 && p.tokens % 1024 == 0;
    tics += StrCat(tics.empty() ? "" : ", ", '"',
                   thousands ? StrCat(p.tokens / 1024, "K") : StrCat(p.tokens),
                   "\" ", p.tokens);
    least = std::min({least, p.probe, p.sparse, p.exact_q8});
    most = std::max(most, p.exact_f32);
  }
  const double crossover = Crossover(points);
  std::string mark;
  if (crossover > 0) {
    mark = StrCat(
        "set arrow from ", Short(crossover), ", graph 0 to ", Short(crossover),
        ", graph 1 nohead dt 2 lw 1 lc rgb \"#98a2b3\"\nset label \"sparse is "
        "faster \xe2\x86\x92\" at ",
        Short(crossover),
        ", graph 0.04 offset 0.6,0 font \",10\" textcolor rgb \"#475467\"\n");
  }
  return StrCat(
      SvgPlotHead(760, 470), "set title ",
      PlotQuoted("Attention of one token against the length of the context"),
      " . \"\\n\" . ", PlotQuoted(subtitle), "\n$data << END\n", data,
      "END\nset logscale xy\nset xrange [", points.front().tokens, ":",
      points.back().tokens == points.front().tokens ? 2 * points.back().tokens
                                                    : points.back().tokens,
      "]\nset yrange [", Short(least * 1e6 / 1.5), ":", Short(most * 1e6 * 1.5),
      "]\nset xtics (", tics, ") scale 0\n", mark,
      R"gp(set xlabel "tokens in the cache"
set ylabel "microseconds a token and layer"
set ytics scale 0
set format y "%g"
set grid ytics lt 1 lw 1 lc rgb "#eaecf0"
set key left top Left reverse samplen 2 opaque textcolor rgb "#344054"
plot $data using 1:2 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#98a2b3" \
     title "exact, f32", \
  $data using 1:3 with linespoints pt 7 ps 0.6 lw 2 lc rgb "#0072B2" \
     title "exact, q8", \
  $data using 1:4 with linespoints pt 7 ps 0.6 lw 2.5 lc rgb "#D55E00" \
     title "sparse, q8", \
  $data using 1:5 with lines lw 1.5 lc rgb "#D55E00" dt 3 \
     title "of it probing", \
  $data using 1:6 with lines lw 1.5 lc rgb "#009E73" dt 2 \
     title "sparse, if only bytes counted"
)gp");
}

std::string QualityText(std::span<const QualityRow> rows, int heads) {
  TextTable table("rrrrrrrl");
  table.Add({"k", "recall %", "regret %", "least %", "mean KL", "largest KL",
             "same top %", ""});
  for (const QualityRow& row : rows) {
    const ChoiceQuality all = row.All();
    table.Add({StrCat(row.k), Percent(all.mean_recall()),
               Percent(all.mean_regret()), Percent(all.least_recall()),
               Short(row.logits.mean_kl()), Short(row.logits.largest_kl()),
               Percent(double(row.logits.same_top()) /
                       static_cast<double>(row.logits.positions())),
               row.ran_exact ? "ran exact" : ""});
  }
  std::string columns = "lr";
  std::vector<std::string> head = {"recall %", ""};
  for (const QualityRow& row : rows) {
    columns += 'r';
    head.push_back(StrCat("k = ", row.k));
  }
  TextTable by_head(columns);
  by_head.Add(head);
  for (std::size_t i = 0; !rows.empty() && i < rows[0].heads.size(); ++i) {
    const std::size_t h = i % static_cast<std::size_t>(heads);
    std::vector<std::string> line = {
        h == 0 ? StrCat("layer ", i / static_cast<std::size_t>(heads)) : "",
        StrCat("head ", h)};
    for (const QualityRow& row : rows) {
      line.push_back(Percent(row.heads[i].mean_recall()));
    }
    by_head.Add(line);
  }
  return StrCat(
      "recall: share of exact attention in the chosen blocks, the mean over "
      "positions,\nlayers and heads; regret: what as many best blocks would "
      "hold more; KL (nats) and\nsame top: the next token's probabilities "
      "against exact attention.\n\n",
      table.Text(), '\n', by_head.Text());
}

Json QualityRows(std::span<const QualityRow> rows, int heads) {
  Json list = Json::array();
  for (const QualityRow& row : rows) {
    const auto add = [&](const ChoiceQuality& q, Json layer, Json head) {
      list.push_back({{"k", row.k},
                      {"ran_exact", row.ran_exact},
                      {"layer", std::move(layer)},
                      {"head", std::move(head)},
                      {"recall", q.mean_recall()},
                      {"regret", q.mean_regret()},
                      {"least_recall", q.least_recall()},
                      {"mean_kl", row.logits.mean_kl()},
                      {"largest_kl", row.logits.largest_kl()},
                      {"same_top", row.logits.same_top()},
                      {"positions", row.logits.positions()}});
    };
    add(row.All(), Json(), Json());
    for (std::size_t i = 0; i < row.heads.size(); ++i) {
      add(row.heads[i], i / static_cast<std::size_t>(heads),
          i % static_cast<std::size_t>(heads));
    }
  }
  return list;
}

std::string PitText(const PitReport& report) {
  TextTable table(report.columns);
  for (const auto& row : report.rows) table.Add(row);
  return StrCat(report.title, "\n\n", table.Text(), '\n',
                Wrapped(report.sentence, kColumns));
}

}  // namespace kvlab
