#include "day09_kv_q8/accuracy_report.h"

#include <algorithm>
#include <cstdio>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/gnuplot.h"
#include "common/lab/text_table.h"

namespace kvlab {
namespace {

using Json = nlohmann::ordered_json;

/// A share in percent: 0.0123 as "1.23", with three or four figures.
std::string Percent(double share) {
  const double percent = 100 * share;
  return share == 0 ? "0"
                    : Fixed(percent, percent >= 10  ? 1
                                     : percent >= 1 ? 2
                                                    : 3);
}

/// Three significant figures.
std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string Cosine(double cosine) { return Fixed(cosine, 6); }

/// A name and what was measured under it.
struct Named {
  std::string name;
  const AccuracyErrors* errors;
};

std::vector<Named> InputsOf(const AccuracyReport& report) {
  std::vector<Named> rows;
  for (const AccuracyReport::Input& input : report.inputs) {
    rows.push_back({input.name, &input.errors});
  }
  return rows;
}

std::vector<Named> LayersOf(const AccuracyReport& report) {
  std::vector<Named> rows;
  for (int layer = 0; layer < report.layers; ++layer) {
    rows.push_back({StrCat("layer ", layer), &report.by_layer[layer]});
  }
  return rows;
}

std::string OutputTable(const std::vector<Named>& rows) {
  TextTable table("llrrrrrrrrr");
  table.Add({"", "scales", "all", "K only", "V only", "q only", "max abs",
             "cosine", "TV", "most", "K peak"});
  for (const Named& row : rows) {
    for (const ScaleForm form : kScaleForms) {
      const auto error = [&](Arm arm) {
        return Percent(row.errors->At(form, arm).output().relative_l2());
      };
      const ArmErrors& all = row.errors->At(form, Arm::kAll);
      table.Add(
          {form == ScaleForm::kPerRow ? row.name : "",
           std::string(ScaleFormName(form)), error(Arm::kAll),
           error(Arm::kKeys), error(Arm::kValues), error(Arm::kQuery),
           Short(all.output().max_abs()), Cosine(all.mean_cosine()),
           Percent(all.mean_total_variation()),
           Percent(all.largest_total_variation()),
           form == ScaleForm::kPerRow ? Short(row.errors->key_peak()) : ""});
    }
  }
  return table.Text();
}

/// The scores of an arm, merged over rows.
ScoreErrors Merged(const std::vector<Named>& rows) {
  ScoreErrors sum;
  for (const Named& row : rows) {
    for (const ScaleForm form : kScaleForms) {
      for (const Arm arm : kArms) sum.Merge(row.errors->At(form, arm).scores());
    }
  }
  return sum;
}

std::string BoundTable(const std::vector<Named>& rows) {
  TextTable table("llrrrrrrr");
  table.Add({"", "scales", "error", "its bound", "all", "K only", "q only",
             "scores", "beyond"});
  for (const Named& row : rows) {
    for (const ScaleForm form : kScaleForms) {
      const ScoreErrors& all = row.errors->At(form, Arm::kAll).scores();
      const auto ratio = [&](Arm arm) {
        return Short(row.errors->At(form, arm).scores().worst_ratio);
      };
      std::int64_t scores = 0, violations = 0;
      for (const Arm arm : kArms) {
        scores += row.errors->At(form, arm).scores().scores;
        violations += row.errors->At(form, arm).scores().violations;
      }
      table.Add({form == ScaleForm::kPerRow ? row.name : "",
                 std::string(ScaleFormName(form)), Short(all.largest),
                 Short(all.bound_of_largest), ratio(Arm::kAll),
                 ratio(Arm::kKeys), ratio(Arm::kQuery), WithCommas(scores),
                 WithCommas(violations)});
    }
  }
  return table.Text();
}

std::string LogitTable(const AccuracyReport& report) {
  TextTable table("llrrrrr");
  table.Add({"", "attention", "positions", "mean KL", "largest KL", "same top",
             "lead lost"});
  const auto add = [&](const char* what, const char* how,
                       const LogitErrors& errors) {
    if (errors.positions() == 0) return;
    table.Add({what, how, WithCommas(errors.positions()),
               Short(errors.mean_kl()), Short(errors.largest_kl()),
               StrCat(WithCommas(errors.same_top()), " (",
                      Fixed(100 * static_cast<double>(errors.same_top()) /
                                static_cast<double>(errors.positions()),
                            2),
                      " %)"),
               Short(errors.largest_lead_lost())});
  };
  add("prefill", "three-pass, f32 and q8 cache", report.prefill_logits);
  add("decode", "three_pass and q8_single_pass", report.decode_logits);
  return table.Text();
}

std::string AsRunTable(const AccuracyReport& report) {
  TextTable table("lrr");
  table.Add({"", "rel. L2", "max abs"});
  for (int layer = 0; layer < report.layers; ++layer) {
    const OutputErrors& error = report.as_run[layer];
    table.Add({StrCat("layer ", layer), Percent(error.relative_l2()),
               Short(error.max_abs())});
  }
  return table.Text();
}

/// All keys of a row, in order; null is what a row does not have.
Json EmptyRow(const char* source, const std::string& input) {
  Json row;
  row["source"] = source;
  row["input"] = input;
  for (const char* key : {"layer",
                          "head",
                          "scales",
                          "arm",
                          "key_peak",
                          "queries",
                          "relative_l2",
                          "max_abs",
                          "mean_cosine",
                          "least_cosine",
                          "mean_total_variation",
                          "largest_total_variation",
                          "scores",
                          "score_error",
                          "score_bound",
                          "worst_error_over_bound",
                          "violations",
                          "positions",
                          "mean_kl",
                          "largest_kl",
                          "same_top",
                          "largest_lead_lost"}) {
    row[key] = nullptr;
  }
  return row;
}

void AddRows(Json& rows, const Json& begin, const AccuracyErrors& errors) {
  for (const ScaleForm form : kScaleForms) {
    for (const Arm arm : kArms) {
      const ArmErrors& e = errors.At(form, arm);
      Json row = begin;
      row["scales"] = ScaleFormName(form);
      row["arm"] = ArmName(arm);
      row["key_peak"] = errors.key_peak();
      row["queries"] = e.queries();
      row["relative_l2"] = e.output().relative_l2();
      row["max_abs"] = e.output().max_abs();
      row["mean_cosine"] = e.mean_cosine();
      row["least_cosine"] = e.least_cosine();
      row["mean_total_variation"] = e.mean_total_variation();
      row["largest_total_variation"] = e.largest_total_variation();
      if (arm != Arm::kValues) {  // whose scores are the exact ones
        row["scores"] = e.scores().scores;
        row["score_error"] = e.scores().largest;
        row["score_bound"] = e.scores().bound_of_largest;
        row["worst_error_over_bound"] = e.scores().worst_ratio;
        row["violations"] = e.scores().violations;
      }
      rows.push_back(row);
    }
  }
}

}  // namespace

ScoreErrors AccuracyReport::scores() const {
  ScoreErrors sum = Merged(InputsOf(*this));
  sum.Merge(Merged(LayersOf(*this)));
  return sum;
}

void RequireWithinBounds(const AccuracyReport& report) {
  const ScoreErrors scores = report.scores();
  if (scores.violations == 0) return;
  Fail(scores.violations, " of ", scores.scores,
       " scores are beyond their bound, expected none: the quantiser is "
       "broken; please report it with the output of --version");
}

std::string AccuracyText(const AccuracyReport& report) {
  const ScoreErrors scores = report.scores();
  return StrCat(
      "Attention output, q8 against f32. Relative L2 in % with q, K and V "
      "rounded (all)\nor one of them; of all: largest |difference|, cosine, "
      "total variation of the\nweights in % (TV: mean, most). K peak: the "
      "keys' largest channel over their median.\n\nChosen inputs\n",
      OutputTable(InputsOf(report)), "The model's own queries\n",
      OutputTable(LayersOf(report)),
      "\nThe same as run by q8_single_pass, with the errors of earlier layers "
      "(rel. L2 in %)\n",
      AsRunTable(report),
      "\nLogits of the q8 run against the f32 run of the same text (KL in "
      "nats). Where\nthe top token changed, the most that it was ahead by, in "
      "probability.\n",
      LogitTable(report),
      "\nScores: largest |error| (all), the bound of that score, and the "
      "largest\n|error| / bound of each arm.\n\nChosen inputs\n",
      BoundTable(InputsOf(report)), "The model's own queries\n",
      BoundTable(LayersOf(report)), '\n', WithCommas(scores.violations), " of ",
      WithCommas(scores.scores), " scores are beyond their bound.\n");
}

Json AccuracyRows(const AccuracyReport& report) {
  Json rows = Json::array();
  for (const Named& input : InputsOf(report)) {
    AddRows(rows, EmptyRow("input", input.name), *input.errors);
  }
  for (int layer = 0; layer < report.layers; ++layer) {
    Json begin = EmptyRow("model", "");
    begin["layer"] = layer;
    AddRows(rows, begin, report.by_layer[layer]);
    for (int head = 0; head < report.heads; ++head) {
      begin["head"] = head;
      AddRows(rows, begin, report.by_head[layer * report.heads + head]);
    }
  }
  for (int layer = 0; layer < report.layers; ++layer) {
    Json row = EmptyRow("as run", "");
    row["layer"] = layer;
    row["scales"] = ScaleFormName(ScaleForm::kPerRow);
    row["arm"] = ArmName(Arm::kAll);
    row["relative_l2"] = report.as_run[layer].relative_l2();
    row["max_abs"] = report.as_run[layer].max_abs();
    rows.push_back(row);
  }
  const auto add_logits = [&](const char* input, const LogitErrors& errors) {
    if (errors.positions() == 0) return;
    Json row = EmptyRow("logits", input);
    row["scales"] = ScaleFormName(ScaleForm::kPerRow);
    row["arm"] = ArmName(Arm::kAll);
    row["positions"] = errors.positions();
    row["mean_kl"] = errors.mean_kl();
    row["largest_kl"] = errors.largest_kl();
    row["same_top"] = errors.same_top();
    row["largest_lead_lost"] = errors.largest_lead_lost();
    rows.push_back(row);
  };
  add_logits("prefill", report.prefill_logits);
  add_logits("decode", report.decode_logits);
  return rows;
}

std::string AccuracyPlotScript(const AccuracyReport& report,
                               const std::string& subtitle) {
  // From top to bottom; a line's place is left between inputs and layers.
  std::string data, tics, exact;
  double least = 1, largest = 1;
  int line = 0;
  const auto add = [&](const Named& row) {
    const auto percent = [&](ScaleForm form, Arm arm) {
      const double error =
          100 * row.errors->At(form, arm).output().relative_l2();
      if (!(error > 0)) return std::string("NaN");  // no place on a log axis
      largest = std::max(largest, error);
      least = std::min(least, error);
      return Short(error);
    };
    data += StrCat(line, ' ', percent(ScaleForm::kPerRow, Arm::kAll), ' ',
                   percent(ScaleForm::kPer32, Arm::kAll), ' ',
                   percent(ScaleForm::kPerRow, Arm::kKeys), ' ',
                   percent(ScaleForm::kPerRow, Arm::kValues), ' ',
                   percent(ScaleForm::kPerRow, Arm::kQuery), '\n');
    if (row.errors->At(ScaleForm::kPerRow, Arm::kAll).output().max_abs() == 0) {
      exact += StrCat(line, '\n');
    }
    tics += StrCat(tics.empty() ? "" : ", ", PlotQuoted(row.name), ' ', line++);
  };
  std::ranges::for_each(InputsOf(report), add);
  ++line;
  std::ranges::for_each(LayersOf(report), add);
  const int height = std::min(160 + 30 * line, 1800);
  return StrCat(
      SvgPlotHead(760, static_cast<std::uint64_t>(height)), "set title ",
      PlotQuoted("What q8 costs: relative L2 error of the attention output"),
      " . \"\\n\" . ", PlotQuoted(subtitle), "\n$data << END\n", data,
      "END\n$exact << END\n", exact, "END\nset ytics (", tics,
      ") scale 0\nset yrange [", line, "-0.4:-0.6]\nset xrange [",
      Short(least / 1.5), ":", Short(largest * 1.8),
      R"gp(]
set logscale x
set format x "%g %%"
set xtics (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) scale 0
set grid xtics lt 1 lw 1 lc rgb "#d0d5dd"
set bmargin 5.5
set key at graph 0.5, screen 0.03 center bottom horizontal samplen 1 \
  width 2 textcolor rgb "#344054"
low(y) = y + 0.3
plot $data using 3:1:($2-$3):(0) with vectors nohead lw 3 lc rgb "#98a2b3" \
     notitle, \
  $data using 3:1 with points pt 7 ps 1 lc rgb "#0072B2" \
     title "all, scales per 32", \
  $data using 2:1 with points pt 7 ps 1 lc rgb "#D55E00" \
     title "all, scales per row", \
  $data using 4:(low($1)) with points pt 2 ps 0.6 lw 2 lc rgb "#9c3f73" \
     title "K only", \
  $data using 5:(low($1)) with points pt 1 ps 0.7 lw 2 lc rgb "#009E73" \
     title "V only", \
  $data using 6:(low($1)) with points pt 4 ps 0.5 lw 2 lc rgb "#667085" \
     title "q only", \
  $data using 2:1:(sprintf("%.3g %%", $2)) with labels left offset 1,0 \
     font ",10" textcolor rgb "#344054" notitle)gp",
      // gnuplot refuses to plot no data.
      exact.empty() ? "\n" : R"gp(, \
  $exact using (1):1:("no error") with labels font ",10" \
     textcolor rgb "#667085" notitle
)gp");
}

HeadErrors AccuracyHeadErrors(const AccuracyReport& report) {
  HeadErrors errors{.layers = static_cast<std::uint64_t>(report.layers),
                    .heads = static_cast<std::uint64_t>(report.heads),
                    .cells = {}};
  for (const AccuracyErrors& head : report.by_head) {
    errors.cells.push_back(
        head.At(ScaleForm::kPerRow, Arm::kAll).output().relative());
  }
  return errors;
}

}  // namespace kvlab
