/// \file
/// Online softmax over KV that arrives: one program writes the keys and values
/// of a real prompt as a stream, the same program attends over it at the other
/// end of a pipe or from a file.
///
///     day09_streaming --produce - | day09_streaming -
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/text.h"
#include "common/engine/generate.h"
#include "common/lab/capture_stage.h"
#include "common/lab/cli.h"
#include "common/lab/interrupt.h"
#include "common/lab/model_prompt.h"
#include "common/loader/json.h"
#include "common/loader/model.h"
#include "common/loader/output_file.h"
#include "common/loader/safetensors_writer.h"
#include "day09_kv_q8/kv_stream.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"

namespace kvlab {
namespace {

struct Options {
  std::string from;     // the consumer's input
  std::string produce;  // the producer's output
  bool no_length = false;
  PromptOptions prompt;  // only its model and needle are options here
  std::string kv = "q8";
  int layer = 0;
  int kv_head = 0;
  std::string isa;
  std::string dump;
  bool json = false;
};

void DeclareOptions(CLI::App& app, Options& o) {
  CLI::Option* from =
      app.add_option("FILE", o.from, "The stream to attend over, - for stdin")
          ->transform(NotEmpty());
  CLI::Option* produce = app.add_option("--produce", o.produce,
                                        "Write a stream instead, - for stdout")
                             ->transform(NotEmpty())
                             ->excludes(from)
                             ->type_name("FILE");
  const auto of_producer = [&](CLI::Option* option) {
    option->needs(produce)->group("With --produce");
  };
  of_producer(app.add_flag("--no-length", o.no_length,
                           "Do not say in the header how many tokens come"));
  of_producer(app.add_option("--model", o.prompt.model, "Model directory")
                  ->transform(NotEmpty())
                  ->type_name("DIR"));
  of_producer(
      app.add_option("--context", o.prompt.needle.context, "Prompt tokens")
          ->transform(WholeNumber(1, 100'000'000))
          ->capture_default_str()
          ->type_name("N"));
  of_producer(
      app.add_option("--seed", o.prompt.needle.seed, "Of the filler facts")
          ->transform(WholeNumber(0, UINT64_MAX))
          ->capture_default_str()
          ->type_name("N"));
  of_producer(app.add_option("--kv", o.kv, "f32 or q8")
                  ->check(CLI::IsMember({"f32", "q8"}))
                  ->capture_default_str()
                  ->type_name("FORMAT"));
  of_producer(app.add_option("--layer", o.layer, "Whose keys and values")
                  ->transform(WholeNumber(0, 100'000))
                  ->capture_default_str()
                  ->type_name("N"));
  of_producer(app.add_option("--kv-head", o.kv_head, "Whose keys and values")
                  ->transform(WholeNumber(0, 100'000))
                  ->capture_default_str()
                  ->type_name("N"));
  app.add_option("--isa", o.isa, "Instruction set of the primitives")
      ->transform(NotEmpty())
      ->type_name("NAME");
  app.add_option("--dump", o.dump,
                 "Write the attention output [query head, d] (safetensors)")
      ->transform(OutputName())
      ->type_name("FILE");
  app.add_flag("--json", o.json, "Report as one JSON object")
      ->excludes(produce);
}

void WriteDump(OutputFile& file, const std::vector<float>& out, int group) {
  const std::uint64_t rows = group;
  const TensorToWrite tensor{.name = "attention",
                             .dtype = Dtype::kF32,
                             .shape = {rows, out.size() / rows},
                             .bytes = std::as_bytes(std::span(out))};
  WriteSafetensors(file, {{"format", "kvlab dump 1"}}, {{tensor}});
}

void RequireBelow(const char* option, int number, int count) {
  if (number < count) return;
  FailUsage(option, ' ', number, ": the model has ", count,
            ", numbered from 0");
}

int Produce(const Options& o, const Primitives& primitives) {
  const Model model = LoadModel(o.prompt.model);
  const ModelConfig& c = model.config;
  RequireBelow("--layer", o.layer, c.layers);
  RequireBelow("--kv-head", o.kv_head, c.kv_heads);
  const Prompt prompt = BuildPrompt(model, o.prompt);
  const auto n = static_cast<int>(prompt.tokens.size());
  if (n + 1 > c.max_position_embeddings) {
    FailUsage("--context ", n, ": ", PathText(model.directory),
              " has positions for ", Count(c.max_position_embeddings, "token"));
  }

  ThreadPool pool(1);
  Transformer transformer(c, model.weights, primitives, pool);
  const bool q8 = o.kv == "q8";
  KvCache cache(
      transformer.CacheShape(q8 ? KvFormat::kQ8 : KvFormat::kF32, n + 1),
      primitives);
  OnlineSoftmaxStage online(primitives, kTileTokens);
  Q8SinglePass single(primitives, kTileTokens);
  AttentionStage& stage = q8 ? static_cast<AttentionStage&>(single) : online;
  CaptureStage capture(
      primitives, stage,
      [&](const AttendInput& input, std::span<const float> out) {
        if (input.layer != o.layer ||
            input.first_head != o.kv_head * c.group()) {
          return;
        }
        // Neither file is put in place before both are written.
        std::optional<OutputFile> stream, dump;
        if (o.produce == "-") {
          WriteKvStream(input, !o.no_length, [](std::span<const std::byte> b) {
            std::cout.write(reinterpret_cast<const char*>(b.data()),
                            static_cast<std::streamsize>(b.size()));
          });
          FinishStdout();
        } else {
          stream.emplace(o.produce);
          WriteKvStream(input, !o.no_length, [&](std::span<const std::byte> b) {
            stream->Write(b);
          });
        }
        if (!o.dump.empty()) {
          WriteDump(dump.emplace(o.dump), {out.begin(), out.end()},
                    input.group);
        }
        if (stream) stream->Commit();
        if (dump) dump->Commit();
      });
  const auto logits =
      transformer.Prefill(prompt.tokens, cache, capture,
                          {.progress = [](double) { CheckInterrupted(); }});
  transformer.Decode(Argmax(logits), cache, capture, {});
  return kExitDone;
}

/// Reads from a file descriptor until `to` is full or the stream ends.
std::size_t ReadFully(int file, const std::string& name,
                      std::span<std::byte> to) {
  std::size_t got = 0;
  while (got < to.size()) {
    const ssize_t more = ::read(file, to.data() + got, to.size() - got);
    CheckInterrupted();
    if (more < 0) {
      Fail(name, ": cannot be read: ", std::generic_category().message(errno));
    }
    if (more == 0) break;
    got += static_cast<std::size_t>(more);
  }
  return got;
}

int Consume(const Options& o, const Primitives& primitives) {
  const bool standard_input = o.from == "-";
  const std::string name =
      standard_input ? "standard input" : Printable(o.from, 1024);
  const int file = standard_input
                       ? STDIN_FILENO
                       : ::open(o.from.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const int error = errno;
    CheckInterrupted();
    Fail(name, ": cannot be opened for reading: ",
         std::generic_category().message(error));
  }
  const KvStreamResult result = AttendToStream(
      primitives,
      [&](std::span<std::byte> to) { return ReadFully(file, name, to); });
  if (!standard_input) ::close(file);

  const KvStreamHeader& h = result.header;
  const bool q8 = h.format == KvFormat::kQ8;
  const std::int64_t row_bytes = q8 ? h.head_dim + 4 : 4 * h.head_dim;
  const std::int64_t arrived = 2 * result.tokens * row_bytes;
  // A block of K and V, and M, S, acc and q of each query head.
  const std::int64_t held = 2 * kTileTokens * row_bytes +
                            std::int64_t{h.group} * (2 + 2 * h.head_dim) * 4;
  if (o.json) {
    nlohmann::ordered_json json;
    json["program"] = "day09_streaming";
    json["version"] = Version();
    json["kv"] = {{"format", q8 ? "q8" : "f32"}, {"bytes", arrived}};
    json["tokens"] = {{"arrived", result.tokens}, {"announced", nullptr}};
    if (h.tokens >= 0) json["tokens"]["announced"] = h.tokens;
    json["head_dim"] = h.head_dim;
    json["query_heads"] = h.group;
    json["held_bytes"] = held;
    json["isa"] = IsaName(primitives.isa);
    std::cout << json.dump(2) << '\n';
  } else {
    std::cout << "tokens arrived      " << WithCommas(result.tokens)
              << (h.tokens < 0 ? " (not announced)" : "") << '\n'
              << "KV head             " << (q8 ? "q8" : "f32") << ", head_dim "
              << h.head_dim << ", " << Count(h.group, "query head") << '\n'
              << "bytes arrived       " << HumanBytes(arrived) << '\n'
              << "bytes held at once  " << HumanBytes(held) << '\n';
  }
  FinishStdout();
  if (!o.dump.empty()) {
    OutputFile dump(o.dump);
    WriteDump(dump, result.out, h.group);
    dump.Commit();
  }
  return kExitDone;
}

int Run(const Options& o) {
  const InterruptGuard interrupt_guard;
  const Primitives& primitives =
      PrimitivesFor(o.isa.empty() ? BestIsa() : ParseIsa(o.isa));
  if (o.from.empty() && o.produce.empty()) {
    FailUsage(
        "give a stream to read, or --produce FILE to write one (see "
        "day09_streaming --help)");
  }
  RequireDistinctFiles({{"--produce", o.produce}, {"--dump", o.dump}},
                       {{"FILE", o.from}});
  for (const std::string& file : {o.produce, o.dump}) {
    if (!file.empty() && file != "-") const OutputFile probe(file);
  }
  return o.produce.empty() ? Consume(o, primitives) : Produce(o, primitives);
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  using namespace kvlab;
  return RunProgram(
      argc, argv, "day09_streaming",
      "Online softmax over keys and values that arrive block by block from a "
      "file or a pipe.",
      [](CLI::App& app) -> ProgramBody {
        const auto options = std::make_shared<Options>();
        DeclareOptions(app, *options);
        return [options] { return Run(*options); };
      });
}
