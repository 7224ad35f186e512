#include "common/lab/comparison_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/text_table.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

using OrderedJson = nlohmann::ordered_json;

// --- Text --------------------------------------------------------------------

std::string ErrorText(double value) {
  if (std::isnan(value)) return "nan";
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string NameText(const TensorComparison& t) {
  return Printable(t.name, 64);
}

std::string ResultText(const TensorComparison& t) {
  const char* side = t.a == nullptr ? "A" : "B";
  switch (t.verdict()) {
    case TensorVerdict::kEqual:
      return "equal";
    case TensorVerdict::kWithin:
      return "within tolerance";
    case TensorVerdict::kByDesign:
      return StrCat("not materialised by design in ", side);
    case TensorVerdict::kDifferent:
      break;
  }
  if (t.a == nullptr || t.b == nullptr) return StrCat("missing in ", side);
  return t.mismatch.empty() ? "different" : t.mismatch;
}

/// The first line: what came out.
std::string Headline(const DumpComparison& comparison,
                     std::optional<double> tolerance) {
  const std::size_t tensors = comparison.tensors.size();
  const std::size_t absent = comparison.Count(TensorVerdict::kByDesign);
  const std::size_t within = comparison.Count(TensorVerdict::kWithin);
  const std::size_t different = comparison.Count(TensorVerdict::kDifferent);
  const std::string limit =
      tolerance ? StrCat("tolerance ", *tolerance) : std::string();
  std::string line;
  switch (comparison.verdict()) {
    case TensorVerdict::kDifferent:
      line = StrCat("different: ", different, " of ",
                    CountWithCommas(tensors, "tensor"));
      if (tolerance) line += StrCat(" (", limit, ")");
      break;
    case TensorVerdict::kWithin:
      line = StrCat("within ", limit, ": ", within, " of ",
                    CountWithCommas(tensors, "tensor"), " not the same bits");
      break;
    default:
      line = StrCat("equal: every bit of ",
                    CountWithCommas(tensors - absent, "tensor"));
  }
  if (absent > 0) line += StrCat("; ", absent, " not materialised by design");
  return line + "\n";
}

/// Most settings that are told in the text.
constexpr std::size_t kMaxSettings = 20;

std::string SettingsText(const DumpComparison& comparison) {
  const std::vector<SettingDifference>& settings = comparison.settings;
  if (settings.empty()) return "";
  std::string text = "settings differ: ";
  const auto shown = [](const std::optional<std::string>& value) {
    return value ? Printable(*value, 60) : std::string("(none)");
  };
  for (std::size_t i = 0; i < std::min(settings.size(), kMaxSettings); ++i) {
    text += StrCat(i > 0 ? "; " : "", Printable(settings[i].key, 40), ' ',
                   shown(settings[i].a), " / ", shown(settings[i].b));
  }
  if (settings.size() > kMaxSettings) {
    text += StrCat("; and ", settings.size() - kMaxSettings, " more");
  }
  return text + '\n';
}

/// Where a student looks first.
std::string FirstText(const DumpComparison& comparison) {
  const TensorComparison* t = comparison.first_difference();
  if (t == nullptr) return "";
  std::string text = StrCat("\nfirst difference: ", NameText(*t));
  if (!t->first) return StrCat(text, ", ", ResultText(*t), '\n');
  return StrCat(text, ", ", PlaceText(*t, *t->first), "\n  A  ",
                ElementText(*t->a, *t->first), "\n  B  ",
                ElementText(*t->b, *t->first), '\n');
}

/// Model files have hundreds of tensors: equal ones are then told in one line,
/// and the others as far as they fit a few screens.
constexpr std::size_t kFewTensors = 20;
constexpr std::size_t kMaxRows = 60;

std::vector<const TensorComparison*> RowsToShow(
    const DumpComparison& comparison) {
  std::vector<const TensorComparison*> rows;
  const bool few = comparison.tensors.size() <= kFewTensors;
  for (const TensorComparison& t : comparison.tensors) {
    if (few || t.verdict() != TensorVerdict::kEqual) rows.push_back(&t);
  }
  if (rows.size() > kMaxRows) rows.resize(kMaxRows);
  return rows;
}

/// Differences of integers with all their digits, as long as those are exact.
std::string MaxAbsText(const TensorComparison& t) {
  const double value = t.error->max_abs();
  const bool integers = !t.max_ulp;
  return integers && value < 0x1p53
             ? WithCommas(static_cast<std::uint64_t>(value))
             : ErrorText(value);
}

/// The numbers of one row of the table, "-" where there are none.
std::vector<std::string> Cells(const TensorComparison& t, bool tolerance) {
  const bool compared = t.a != nullptr && t.b != nullptr &&
                        (t.compared > 0 || t.mismatch.empty());
  if (!compared) return {"-", "-", "-", "-", "-"};
  return {t.error ? MaxAbsText(t) : "-",
          tolerance && t.max_ulp ? ErrorText(t.allowed) : "-",
          t.error ? ErrorText(t.error->relative_l2()) : "-",
          t.max_ulp ? WithCommas(*t.max_ulp) : "-",
          StrCat(WithCommas(t.differing), " of ", WithCommas(t.compared))};
}

std::string TensorTable(const DumpComparison& comparison, bool tolerance) {
  TextTable table(tolerance ? "lrrrrrl" : "lrrrrl");
  const auto add = [&](const std::string& name, std::vector<std::string> cells,
                       const std::string& result) {
    if (!tolerance) cells.erase(cells.begin() + 1);
    cells.insert(cells.begin(), name);
    cells.push_back(result);
    table.Add(std::move(cells));
  };
  add("tensor", {"max|A-B|", "allowed", "rel. L2", "max ulp", "differing"},
      "result");
  const std::vector<const TensorComparison*> rows = RowsToShow(comparison);
  for (const TensorComparison* t : rows) {
    add(NameText(*t), Cells(*t, tolerance), ResultText(*t));
  }
  std::string text = StrCat('\n', table.Text());
  const std::size_t rest = comparison.tensors.size() - rows.size();
  if (rest > 0) {  // with many tensors, no equal one has a row
    text += StrCat("  and ", CountWithCommas(rest, "tensor"), " more, ",
                   comparison.Count(TensorVerdict::kEqual),
                   " of them equal (--json lists all)\n");
  }
  return text;
}

/// The place of the largest error of each tensor that has one.
std::string LargestTable(const DumpComparison& comparison) {
  TextTable table("llrr");
  bool any = false;
  table.Add({"largest |A-B|", "at", "A", "B"});
  for (const TensorComparison* t : RowsToShow(comparison)) {
    if (!t->largest) continue;
    any = true;
    table.Add({NameText(*t), PlaceText(*t, *t->largest),
               ElementText(*t->a, *t->largest),
               ElementText(*t->b, *t->largest)});
  }
  return any ? StrCat('\n', table.Text()) : "";
}

std::string NotesText(const DumpComparison& comparison) {
  std::string text;
  for (const std::string& note : comparison.notes) text += note + '\n';
  return text.empty() ? "" : StrCat('\n', text);
}

std::string StageOf(const SafetensorsFile& file) {
  const auto found = file.metadata().find("stage");
  return found == file.metadata().end()
             ? ""
             : StrCat(" (", Printable(found->second, 40), ")");
}

// --- JSON --------------------------------------------------------------------

/// JSON has no NaN and no infinity: they become "nan", "inf", "-inf".
OrderedJson NumberJson(double value) {
  if (std::isfinite(value)) return value;
  return ErrorText(value);
}

OrderedJson ElementJson(const TensorInfo& tensor, std::uint64_t index) {
  const std::string text = ElementText(tensor, index);
  return OrderedJson::accept(text) ? OrderedJson::parse(text)
                                   : OrderedJson(text);
}

/// The element's place, and its value in both files.
OrderedJson PlaceJson(const TensorComparison& t,
                      const std::optional<std::uint64_t>& index) {
  if (!index) return {};
  const std::vector<std::uint64_t> place = PlaceOf(t, *index);
  OrderedJson json = {{"index", place}};
  if (t.axes.size() == place.size()) {
    json["place"] = OrderedJson::object();
    for (std::size_t i = 0; i < place.size(); ++i) {
      json["place"][t.axes[i]] = place[i];
    }
  }
  json["a"] = ElementJson(*t.a, *index);
  json["b"] = ElementJson(*t.b, *index);
  return json;
}

OrderedJson HeadsJson(const HeadErrors& errors) {
  OrderedJson max_abs = OrderedJson::array(), l2 = OrderedJson::array();
  for (std::uint64_t layer = 0; layer < errors.layers; ++layer) {
    OrderedJson max_abs_row = OrderedJson::array();
    OrderedJson l2_row = OrderedJson::array();
    for (std::uint64_t head = 0; head < errors.heads; ++head) {
      const auto cell = static_cast<std::size_t>(layer * errors.heads + head);
      max_abs_row.push_back(NumberJson(errors.cells[cell].max_abs()));
      l2_row.push_back(NumberJson(errors.cells[cell].relative_l2()));
    }
    max_abs.push_back(std::move(max_abs_row));
    l2.push_back(std::move(l2_row));
  }
  return {{"max_abs", std::move(max_abs)}, {"relative_l2", std::move(l2)}};
}

const char* VerdictName(TensorVerdict verdict) {
  switch (verdict) {
    case TensorVerdict::kEqual:
      return "equal";
    case TensorVerdict::kWithin:
      return "within tolerance";
    case TensorVerdict::kByDesign:
      return "not materialised by design";
    case TensorVerdict::kDifferent:
      break;
  }
  return "different";
}

OrderedJson SideJson(const TensorInfo* tensor) {
  if (tensor == nullptr) return {};
  return {{"dtype", DtypeName(tensor->dtype)}, {"shape", tensor->shape}};
}

OrderedJson TensorJson(const TensorComparison& t, bool tolerance) {
  const auto error = [&](auto value) {
    return t.error ? OrderedJson(value(*t.error)) : OrderedJson();
  };
  OrderedJson json;
  json["name"] = t.name;
  json["verdict"] = VerdictName(t.verdict());
  json["why"] = ResultText(t);
  json["a"] = SideJson(t.a);
  json["b"] = SideJson(t.b);
  json["compared"] = t.compared;
  json["differing"] = t.differing;
  json["beyond"] = t.beyond;
  json["allowed"] = tolerance ? NumberJson(t.allowed) : OrderedJson();
  json["max_abs"] = error([](auto& e) { return NumberJson(e.max_abs()); });
  json["relative_l2"] =
      error([](auto& e) { return NumberJson(e.relative_l2()); });
  json["max_ulp"] = t.max_ulp ? OrderedJson(*t.max_ulp) : OrderedJson();
  json["nan"] = error([](auto& e) { return e.nan(); });
  json["infinite"] = error([](auto& e) { return e.infinite(); });
  json["first"] = PlaceJson(t, t.first);
  json["largest"] = PlaceJson(t, t.largest);
  json["heads"] = t.heads ? HeadsJson(*t.heads) : OrderedJson();
  return json;
}

OrderedJson SettingsJson(const DumpComparison& comparison) {
  // A map: looking a key up in an ordered object takes a pass over all.
  std::map<std::string, OrderedJson> settings;
  const auto value = [](const std::optional<std::string>& text) {
    return text ? OrderedJson(*text) : OrderedJson();
  };
  for (const SettingDifference& s : comparison.settings) {
    settings[s.key] = {{"a", value(s.a)}, {"b", value(s.b)}};
  }
  return settings;
}

}  // namespace

OrderedJson DumpFileJson(const SafetensorsFile& file) {
  return {{"file", PathText(file.path())}, {"metadata", file.metadata()}};
}

std::string ComparisonText(const SafetensorsFile& a, const SafetensorsFile& b,
                           const DumpComparison& comparison,
                           std::optional<double> tolerance) {
  return StrCat(Headline(comparison, tolerance), "  A  ", PathText(a.path()),
                StageOf(a), "\n  B  ", PathText(b.path()), StageOf(b), '\n',
                SettingsText(comparison), FirstText(comparison),
                TensorTable(comparison, tolerance.has_value()),
                LargestTable(comparison), NotesText(comparison));
}

OrderedJson ComparisonJson(const SafetensorsFile& a, const SafetensorsFile& b,
                           const DumpComparison& comparison,
                           std::optional<double> tolerance) {
  OrderedJson json;
  json["verdict"] = VerdictName(comparison.verdict());
  json["tolerance"] = tolerance ? OrderedJson(*tolerance) : OrderedJson();
  json["a"] = DumpFileJson(a);
  json["b"] = DumpFileJson(b);
  json["settings"] = SettingsJson(comparison);
  json["notes"] = comparison.notes;
  const TensorComparison* first = comparison.first_difference();
  json["first_difference"] = OrderedJson();
  if (first != nullptr) {
    json["first_difference"] = {{"tensor", first->name},
                                {"why", ResultText(*first)},
                                {"element", PlaceJson(*first, first->first)}};
  }
  json["tensors"] = OrderedJson::array();
  for (const TensorComparison& t : comparison.tensors) {
    json["tensors"].push_back(TensorJson(t, tolerance.has_value()));
  }
  return json;
}

}  // namespace kvlab
