/// \file
/// lab_compare: are two dumps the same, and if not, where do they part?
///
///     lab_compare A.safetensors B.safetensors          bit by bit
///     lab_compare A.safetensors B.safetensors --tolerance 1e-5
///     lab_compare --golden A.sha256 A.safetensors      against a committed sum
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/lab/cli.h"
#include "common/lab/comparison_report.h"
#include "common/lab/dump_comparison.h"
#include "common/lab/error_plot.h"
#include "common/lab/gnuplot.h"
#include "common/lab/sha256.h"
#include "common/loader/json.h"
#include "common/loader/output_file.h"
#include "common/loader/safetensors.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr char kName[] = "lab_compare";

/// Results that this program tells by its exit code; what goes wrong is 2.
constexpr int kEqualOrWithin = 0;
constexpr int kDifferent = 1;
constexpr int kNoPicture = 1;

constexpr char kHelp[] = R"(What is compared
  Without --tolerance two elements are equal if all their bits are.
  With --tolerance X a tensor of floats passes if max|A-B| <= X * max|B|, both
  maxima over the whole tensor. Integers and other types must still be equal.
  NaN is always a difference, even against NaN, and so is an infinity against
  anything else.
  Another dtype or shape is a difference. If only the first axis is longer (runs
  with different numbers of steps), the steps that both have are compared too.
  A tensor that one file lacks is a difference, unless that file's metadata
  names it in "not_materialised": then its stage, by design, has no such tensor.
  Settings that differ (stage, context, seed ...) are shown and do not count.

What is shown
  rel. L2   norm(A-B) / norm(B), with norm the square root of a sum of squares
  max ulp   the largest number of steps from a float to the next, from A to B
  differing elements whose bits are not the same, or NaN
  F8 and complex elements are compared as bytes: they have no numbers here.

Exit code
  0 equal or within tolerance; 1 different, or no gnuplot for --svg;
  2 wrong usage, or a file that cannot be read or written)";

// --- lab_compare A B ---------------------------------------------------------

struct Options {
  std::string a;
  std::string b;
  std::string golden;
  std::string svg;
  std::optional<double> tolerance;
  bool json = false;
};

/// A report: who made it, then what it says.
void Print(const OrderedJson& report) {
  OrderedJson json = {{"program", kName}, {"version", Version()}};
  json.update(report);
  std::cout << json.dump(2, ' ', false, OrderedJson::error_handler_t::replace)
            << '\n';
}

/// The picture of the attention outputs' errors.
std::string Draw(const DumpComparison& comparison, const Options& o) {
  const auto attention =
      std::find_if(comparison.tensors.begin(), comparison.tensors.end(),
                   [](const auto& t) { return t.name == "attention"; });
  if (attention == comparison.tensors.end() || !attention->heads) {
    FailUsage(
        "--svg: expected a tensor \"attention\" in both files, its axes "
        "\"layer\" and \"head\" named in the metadata, found none to "
        "draw; make the dumps with --dump");
  }
  const auto name = [](const std::string& path) {
    return Printable(fs::path(path).stem().string(), 30);
  };
  return DrawSvg(ErrorPlotScript(
      *attention->heads,
      "Attention error of each layer and head: norm(A - B) / norm(B)",
      StrCat("A: ", name(o.a), "   B: ", name(o.b))));
}

int Compare(const Options& o) {
  // What can be refused at once is, before any work.
  if (!o.svg.empty()) {
    const OutputFile probe(o.svg);
    if (!HaveGnuplot()) {
      std::cerr << kName << ": --svg: " << kNoGnuplot << '\n';
      return kNoPicture;
    }
  }
  const SafetensorsFile a = SafetensorsFile::Open(o.a);
  const SafetensorsFile b = SafetensorsFile::Open(o.b);
  const DumpComparison comparison = CompareDumps(a, b, o.tolerance);
  const std::string picture = o.svg.empty() ? "" : Draw(comparison, o);
  if (o.json) {
    Print(ComparisonJson(a, b, comparison, o.tolerance));
  } else {
    std::cout << ComparisonText(a, b, comparison, o.tolerance);
  }
  FinishStdout();  // a run that cannot report must not replace a file
  if (!o.svg.empty()) {
    OutputFile svg(o.svg);
    svg.Write(picture);
    svg.Commit();
  }
  return comparison.verdict() == TensorVerdict::kDifferent ? kDifferent
                                                           : kEqualOrWithin;
}

// --- lab_compare --golden ----------------------------------------------------

/// A line of a .sha256 file.
struct GoldenSum {
  std::string sum;
  std::string name;
};

/// Reads lines "SUM  NAME", as sha256sum writes them ("SUM *NAME" for binary
/// files). Throws Error.
std::vector<GoldenSum> ReadGolden(const fs::path& path) {
  constexpr std::uint64_t kMaxBytes = 1'000'000;
  const std::string text = ReadSmallFile(path, kMaxBytes);
  std::vector<GoldenSum> sums;
  std::size_t line_number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);  // a checkout on Windows
    const std::string sum = LeadingSha256(line);
    const std::string_view name =
        line.substr(std::min(line.size(), kSha256Digits));
    if (sum.empty() || name.size() < 3 || name[0] != ' ' ||
        (name[1] != ' ' && name[1] != '*')) {
      Fail(PathText(path), ": line ", line_number,
           ": expected \"SUM  NAME\" as sha256sum writes it, with 64 digits, "
           "found \"",
           Printable(line), '"');
    }
    sums.push_back({sum, std::string(name.substr(2))});
  }
  return sums;
}

/// The sum that is meant for `dump`: the one with its name, or the only one.
GoldenSum FindGolden(const fs::path& golden, const fs::path& dump) {
  const std::vector<GoldenSum> sums = ReadGolden(golden);
  if (sums.size() == 1) return sums[0];
  const std::string name = dump.filename().string();
  std::vector<GoldenSum> found;
  for (const GoldenSum& sum : sums) {
    if (fs::path(sum.name).filename() == name) found.push_back(sum);
  }
  if (found.size() == 1) return found[0];
  Fail(PathText(golden), ": expected one sum, or one of them for ",
       Printable(name), ", found ", sums.size(), " sums, ", found.size(),
       " for this name");
}

/// "stage three_pass, context 300": how a dump was made.
std::string SettingsOf(const SafetensorsFile& dump) {
  std::string text;
  for (const char* key :
       {"stage", "model", "kv", "context", "depth", "seed", "needle"}) {
    const auto found = dump.metadata().find(key);
    if (found == dump.metadata().end()) continue;
    text += StrCat(text.empty() ? "" : ", ", key, ' ',
                   Printable(found->second, 60));
  }
  return text.empty() ? "none that it tells" : text;
}

int CompareGolden(const Options& o) {
  const GoldenSum golden = FindGolden(o.golden, o.a);
  // A damaged file has another sum too, but "damaged" says more.
  const SafetensorsFile dump = SafetensorsFile::Open(o.a);
  const std::string sum = Sha256(o.a);
  const bool equal = sum == golden.sum;
  if (o.json) {
    OrderedJson json;
    json["verdict"] = equal ? "equal" : "different";
    json["a"] = DumpFileJson(dump);
    json["golden"] = {{"file", PathText(o.golden)}, {"name", golden.name}};
    json["sha256"] = {{"computed", sum}, {"expected", golden.sum}};
    Print(json);
  } else {
    std::cout << (equal ? "equal: " : "different: ") << PathText(o.a)
              << (equal ? " has the sum of " : " has not the sum of ")
              << PathText(o.golden) << "\n  computed  " << sum
              << "\n  expected  " << golden.sum << "  "
              << Printable(golden.name) << '\n';
    if (!equal) {
      std::cout
          << "Were they made with the same settings? This dump's: "
          << SettingsOf(dump)
          << "\nIf so, make the other dump too (any machine gives the "
             "same bytes) and let\nlab_compare show where the two part.\n";
    }
  }
  return equal ? kEqualOrWithin : kDifferent;
}

// --- The command line --------------------------------------------------------

/// Refuses what could be told only after the work, or would undo it.
void CheckOptions(const Options& o) {
  if (o.golden.empty() && o.b.empty()) {
    FailUsage("expected two files, or --golden FILE and one, found one (see ",
              kName, " --help)");
  }
  for (const std::string& input : {o.a, o.b}) {
    std::error_code ignored;  // no such file yet
    if (!o.svg.empty() && fs::equivalent(o.svg, input, ignored)) {
      FailUsage("--svg: ", PathText(o.svg),
                " is one of the files to compare; it would be overwritten");
    }
  }
}

ProgramBody Setup(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  app.footer(kHelp);
  app.add_option("A", o->a, "A dump, or any safetensors file")
      ->transform(NotEmpty())
      ->type_name("")
      ->required();
  CLI::Option* b = app.add_option("B", o->b, "The one to compare it with")
                       ->transform(NotEmpty())
                       ->type_name("");
  CLI::Option* tolerance =
      app.add_option("--tolerance", o->tolerance,
                     "Floats may differ by X times the tensor's largest |B|")
          ->transform(NotNegative())
          ->type_name("X");
  CLI::Option* svg =
      app.add_option("--svg", o->svg,
                     "Draw the attention error of each layer and head (needs "
                     "gnuplot)")
          ->transform(OutputName())
          ->type_name("FILE");
  app.add_option("--golden", o->golden,
                 "Compare the SHA-256 of A with the one in FILE, as sha256sum "
                 "writes it")
      ->transform(NotEmpty())
      ->type_name("FILE")
      ->excludes(b)
      ->excludes(tolerance)
      ->excludes(svg);
  app.add_flag("--json", o->json, "Everything as one JSON object");
  return [o] {
    CheckOptions(*o);
    return o->golden.empty() ? Compare(*o) : CompareGolden(*o);
  };
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  // 1 would mean "different".
  return kvlab::RunProgram(
      argc, argv, kvlab::kName,
      "Compares two dumps: where they first differ, and by how much.",
      kvlab::Setup, kvlab::kExitUsage);
}
