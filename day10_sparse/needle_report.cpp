#include "day10_sparse/needle_report.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/text_table.h"

namespace kvlab {
namespace {

constexpr std::size_t kColumns = 100;

std::string RowName(const NeedleRun& run) {
  if (!run.sparse) return run.stage;
  return StrCat(run.stage, " k=", run.sparse->k,
                run.sparse->sparse_prefill ? " *" : "",
                run.ran_exact ? " =" : "");
}

std::string Milliseconds(const std::optional<double>& ms) {
  return ms ? Fixed(*ms, 3) : "-";
}

std::string YesNo(const NeedleRun& run, bool has_needle) {
  return !has_needle ? "-" : run.found ? "YES" : "NO";
}

std::string ArticleTable(const TableSettings& settings,
                         const std::vector<NeedleRun>& runs, bool has_needle) {
  TextTable table("lllrrrl");
  table.Add(
      {"KV", "stage", "needle", "attention", "total", "prefill", "answer"});
  for (const NeedleRun& run : runs) {
    // The sweep has a table of its own.
    if (run.sparse && !settings.own_ks && run.sparse->k != 32 &&
        run.sparse->k != 1) {
      continue;
    }
    table.Add(
        {std::string(FormatName(run.kv)), RowName(run), YesNo(run, has_needle),
         Milliseconds(run.attention_ms), Milliseconds(run.total_ms),
         StrCat(Fixed(run.prefill_s, 2), " s"), Printable(run.output, 32)});
  }
  return table.Text();
}

std::string SweepTable(const std::vector<NeedleRun>& runs, bool has_needle) {
  TextTable table("llllrrrr");
  table.Add({"KV", "stage", "needle", "differs from exact", "attention",
             "mass read", "KV read", "of exact"});
  for (const NeedleRun& run : runs) {
    std::string differs = run.first_difference
                              ? StrCat("at token ", *run.first_difference + 1)
                              : "no";
    table.Add(
        {std::string(FormatName(run.kv)), RowName(run), YesNo(run, has_needle),
         std::move(differs), Milliseconds(run.attention_ms),
         run.mass ? StrCat(Fixed(100 * *run.mass, 1), " %") : "",
         run.read_bytes
             ? HumanBytes(static_cast<std::uint64_t>(*run.read_bytes))
             : "-",
         run.read_bytes
             ? StrCat(Fixed(100 * *run.read_bytes / run.exact_read_bytes, 0),
                      " %")
             : "-"});
  }
  return table.Text();
}

/// `text` without its numbers.
std::string Shape(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  return text;
}

/// Each reason once, after the rows that it is the reason of. What differs in
/// its numbers alone from one of the same k is not printed (--json has it).
std::string Reasons(const std::vector<NeedleRun>& runs) {
  struct Reason {
    const NeedleRun* first;
    std::string rows;
    std::string alike = {};
  };
  std::vector<Reason> reasons;
  const auto add = [](std::string& rows, const std::string& row) {
    rows += (rows.empty() ? "" : ", ") + row;
  };
  for (const NeedleRun& run : runs) {
    if (run.why.empty()) continue;
    const std::string row = StrCat(FormatName(run.kv), " k=", run.sparse->k,
                                   run.sparse->sparse_prefill ? " *" : "");
    const auto same = std::ranges::find_if(
        reasons, [&](const Reason& r) { return r.first->why == run.why; });
    const auto alike = std::ranges::find_if(reasons, [&](const Reason& r) {
      return r.first->sparse->k == run.sparse->k &&
             r.first->sparse->sparse_prefill == run.sparse->sparse_prefill &&
             Shape(r.first->why) == Shape(run.why);
    });
    if (same != reasons.end()) {
      add(same->rows, row);
    } else if (alike != reasons.end()) {
      add(alike->alike, row);
    } else {
      reasons.push_back({&run, row});
    }
  }
  std::string text;
  for (const Reason& reason : reasons) {
    text += Wrapped(
        StrCat(reason.rows,
               reason.alike.empty()
                   ? ""
                   : StrCat(" (", reason.alike, " alike, with other numbers)"),
               ": ", reason.first->why),
        kColumns, 2);
  }
  return text.empty() ? "" : "\nWhy the needle was missed\n" + text;
}

/// All rows that are exact, if there are two.
std::string ExactAnswers(const std::vector<NeedleRun>& runs) {
  std::vector<std::string> answers;
  for (const NeedleRun& run : runs) {
    if (!run.sparse) answers.push_back(run.output);
  }
  if (answers.size() < 2) return "";
  return std::ranges::adjacent_find(answers, std::ranges::not_equal_to()) ==
                 answers.end()
             ? "All exact stages give the same answer.\n"
             : "The exact stages give different answers.\n";
}

}  // namespace

std::string ArticleText(const std::vector<NeedleRun>& runs) {
  std::string text;
  // Of each format, how long exact prefill took; then the k = 1 rows.
  const NeedleRun* exact = nullptr;
  const NeedleRun* with_exact_prefill = nullptr;
  for (const NeedleRun& run : runs) {
    if (exact == nullptr || exact->kv != run.kv) {
      exact = &run;
      with_exact_prefill = nullptr;
    }
    if (!run.sparse || run.sparse->k != 1 || run.ran_exact) continue;
    if (!run.sparse->sparse_prefill) {
      with_exact_prefill = &run;
      continue;
    }
    if (with_exact_prefill == nullptr || !exact->found) continue;
    int shared[2] = {};
    text += StrCat("On ", FormatName(run.kv), ": ");
    const NeedleRun* const pair[] = {with_exact_prefill, &run};
    for (int i = 0; i < 2; ++i) {
      const NeedleRun& one = *pair[i];
      shared[i] = !one.found + (one.first_difference == std::size_t{0}) +
                  !one.stopped + (one.prefill_s < 0.75 * exact->prefill_s);
      text += StrCat(
          i == 0 ? "k = 1 with exact prefill is "
                 : "; with sparse prefill (*) it is ",
          one.first_difference
              ? StrCat("wrong from token ", *one.first_difference + 1)
              : std::string("not wrong"),
          one.stopped ? " and ends after " : " and unfinished after ",
          one.tokens.size(),
          i == 0 ? ""
                 : StrCat(", its prefill takes ",
                          Fixed(100 * one.prefill_s / exact->prefill_s, 0),
                          " % of the time"));
    }
    text += shared[0] == shared[1]  ? "; neither is nearer to the article's. "
            : shared[0] > shared[1] ? "; the first is nearer to the article's. "
                                    : "; the second is nearer to the "
                                      "article's. ";
  }
  if (text.empty()) return "";
  return "The article's k = 1 answer misses the needle, is wrong from its "
         "first token and unfinished after 40, and its prefill took 63 % of "
         "the time of exact attention's. " +
         text;
}

std::string NeedleText(const TableSettings& settings,
                       const std::vector<NeedleRun>& runs, bool has_needle) {
  const std::string article = ArticleText(runs);
  const bool any_exact = std::ranges::any_of(runs, &NeedleRun::ran_exact);
  return StrCat(
      "The article's table on this machine (attention and total in ms a token; "
      "the prompt is\nread once for each KV format)\n\n",
      ArticleTable(settings, runs, has_needle),
      "\n  * sparse prefill: the prompt's own queries chose their blocks too\n",
      any_exact ? "  = ran exact: all blocks were chosen\n" : "",
      "\nWhat each budget reads (KV a token, each row of keys and values "
      "counted once)\n\n",
      SweepTable(runs, has_needle),
      "\n  mass read: of the attention that exact attention gives, what the "
      "chosen blocks hold\n",
      Reasons(runs), article.empty() ? "" : "\n",
      article.empty() ? "" : Wrapped(article, kColumns, 0), '\n',
      ExactAnswers(runs));
}

}  // namespace kvlab
