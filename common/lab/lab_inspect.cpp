/// \file
/// lab_inspect: a first look at what a model is made of, and what it runs on.
///
///     lab_inspect model [DIR]                      config, parts, tensors
///     lab_inspect tensors FILE                     one safetensors file
///     lab_inspect tokens [DIR] --text "hello"      text -> tokens
///     lab_inspect tokens [DIR] --text-file F       a file's text -> tokens
///     lab_inspect decode [DIR] --ids 1,2,3         tokens -> text
///     lab_inspect chat [DIR] --messages F.json     conversation -> prompt
///     lab_inspect cpu                              instruction sets, cores
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/text.h"
#include "common/lab/cli.h"
#include "common/lab/text_table.h"
#include "common/loader/chat.h"
#include "common/loader/config.h"
#include "common/loader/json.h"
#include "common/loader/model_files.h"
#include "common/loader/safetensors.h"
#include "common/loader/tokenizer.h"
#include "common/simd/primitives.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

std::string Quoted(std::string_view text) {
  return StrCat('"', Printable(text), '"');
}

std::string Count(int n) { return WithCommas(static_cast<std::uint64_t>(n)); }

// --- lab_inspect model ------------------------------------------------------

/// The sizes of config.json, each with what it stands for.
void PrintConfig(const ModelConfig& config) {
  std::cout << "config.json: the sizes that shape the decoder\n";
  TextTable table("lrl");
  table.Add(
      {"vocab_size", Count(config.vocab_size), "tokens it can read and write"});
  table.Add({"hidden_size", Count(config.hidden_size),
             "numbers that carry one token from layer to layer"});
  table.Add({"intermediate_size", Count(config.intermediate_size),
             "width inside the feed-forward network"});
  table.Add({"layers", Count(config.layers),
             "times that attention and feed-forward alternate"});
  table.Add({"heads", Count(config.heads),
             "query heads: questions that each layer asks at once"});
  table.Add({"kv_heads", Count(config.kv_heads),
             StrCat("key/value heads: each serves ",
                    CountWithCommas(static_cast<std::size_t>(config.group()),
                                    "query head"))});
  table.Add({"head_dim", Count(config.head_dim),
             "numbers in one head's query, key or value"});
  table.Add({"rms_norm_eps", StrCat(config.rms_norm_eps),
             "keeps RMSNorm from dividing by zero"});
  table.Add({"rope_theta", StrCat(config.rope_theta),
             "base of RoPE's wavelengths: larger reaches farther"});
  table.Add({"tied embeddings", config.tie_word_embeddings ? "yes" : "no",
             "whether input and output share one matrix"});
  table.Add({"max positions", Count(config.max_position_embeddings),
             "longest context the model allows"});
  table.Add({"trained context", Count(config.trained_context),
             "longest context it saw in training"});
  std::cout << table.Text() << '\n';
}

/// What the model keeps of every token it has read.
void PrintKvCache(const ModelConfig& config) {
  const auto numbers = 2 * static_cast<std::uint64_t>(config.layers) *
                       static_cast<std::uint64_t>(config.kv_heads) *
                       static_cast<std::uint64_t>(config.head_dim);
  const std::uint64_t f32 = numbers * sizeof(float);
  const auto context = static_cast<std::uint64_t>(config.trained_context);
  std::cout << "KV cache: what stays of a token once it is read\n  a key and a "
               "value x "
            << kvlab::Count(config.layers, "layer") << " x "
            << kvlab::Count(config.kv_heads, "KV head") << " x "
            << config.head_dim << " = " << CountWithCommas(numbers, "number")
            << ", " << HumanBytes(f32) << " as f32\n  a context of "
            << CountWithCommas(context, "token") << ": "
            << HumanBytes(f32 * context) << "\n\n";
}

struct PartRow {
  ModelPart part;
  const char* name;
  const char* what;
};
constexpr std::array kParts = {
    PartRow{ModelPart::kEmbedding, "embedding",
            "the vector that each token starts as"},
    PartRow{ModelPart::kAttention, "attention",
            "q, k, v, o: tokens look at earlier ones"},
    PartRow{ModelPart::kFeedForward, "feed-forward",
            "gate, up, down: each token by itself"},
    PartRow{ModelPart::kNorm, "norms", "gains: a factor for each number"},
    PartRow{ModelPart::kHead, "head", "each token's score to come next"},
};

/// Parameters by part, with one sentence each.
void PrintParts(const std::vector<ModelTensor>& tensors,
                const ModelFiles& files) {
  std::map<ModelPart, std::uint64_t> parameters;
  std::uint64_t total = 0;
  for (const ModelTensor& tensor : tensors) {
    const std::uint64_t count = files.Find(tensor.name)->Elements();
    parameters[tensor.part] += count;
    total += count;
  }
  std::cout << "Parameters: " << WithCommas(total) << '\n';
  TextTable table("lrrl");
  table.Add({"part", "parameters", "share", "what it is"});
  for (const PartRow& row : kParts) {
    const std::uint64_t count = parameters[row.part];
    char share[16];
    std::snprintf(
        share, sizeof share, "%.1f %%",
        100.0 * static_cast<double>(count) / static_cast<double>(total));
    table.Add({row.name, WithCommas(count), share,
               count == 0 ? "the embedding once more (tied)" : row.what});
  }
  std::cout << table.Text() << '\n';
}

/// Every tensor that the engine reads, and how many more the files have.
void PrintTensors(const std::vector<ModelTensor>& tensors,
                  const ModelFiles& files) {
  std::cout << "Tensors, in the order in which a token meets them; a matrix "
               "[rows, columns]\nturns a vector of columns into one of rows\n";
  TextTable table("llrr");
  table.Add({"tensor", "dtype", "shape", "bytes"});
  std::uint64_t bytes = 0;
  for (const ModelTensor& tensor : tensors) {
    const TensorInfo& info = *files.Find(tensor.name);
    table.Add({tensor.name, std::string(DtypeName(info.dtype)),
               ShapeText(info.shape), HumanBytes(info.bytes.size())});
    bytes += info.bytes.size();
  }
  table.Add({"total", "", "", HumanBytes(bytes)});
  std::cout << table.Text();
  const std::size_t others = files.tensor_count() - tensors.size();
  std::cout << "  in " << CountWithCommas(files.files().size(), "file") << "; "
            << CountWithCommas(others, "other tensor")
            << " there, not used\n\n";
}

/// Tokenizer, chat template and end tokens. A directory without them can still
/// be looked at, so what is wrong with them is told and not thrown. Throws
/// Error on an end token that does not exist.
TextTable TextParts(const fs::path& directory, const ModelConfig& config) {
  TextTable table("ll");
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = std::make_unique<Tokenizer>(
        Tokenizer::Load(directory / "tokenizer.json"));
    table.Add(
        {"tokenizer", StrCat("byte-level BPE, ",
                             CountWithCommas(tokenizer->size(), "token"))});
  } catch (const Error& e) {
    table.Add({"tokenizer", StrCat("none usable: ", e.what())});
  }
  try {
    const ChatTemplate chat = ChatTemplate::Load(directory);
    table.Add({"chat template", chat.has_thinking()
                                    ? "ChatML with Qwen3's <think> rules"
                                    : "ChatML"});
  } catch (const Error& e) {
    table.Add({"chat template", StrCat("none usable: ", e.what())});
  }
  std::string ends;
  for (const int id : ReadEosIds(directory, config.vocab_size)) {
    ends += StrCat(ends.empty() ? "" : ", ", id);
    if (tokenizer != nullptr && id < tokenizer->size()) {
      ends += ' ' + Quoted(tokenizer->TokenBytes(id));
    }
  }
  table.Add({"end tokens", ends.empty() ? "none" : ends});
  return table;
}

int InspectModel(const fs::path& directory) {
  CheckDirectory(directory);
  const ModelConfig config = ReadModelConfig(directory);
  const std::shared_ptr<ModelFiles> files = ModelFiles::Open(directory);
  BuildWeights(config, files.get());  // checks every shape
  const std::vector<ModelTensor> tensors = ModelTensors(config, *files);
  const TextTable text = TextParts(directory, config);
  std::cout << "Model    " << PathText(directory) << "\nFamily   "
            << config.family->model_type
            << ": RMSNorm, grouped-query attention, RoPE, "
            << (config.family->qk_norm ? "q/k norm, " : "") << "SwiGLU\n\n";
  PrintConfig(config);
  PrintKvCache(config);
  PrintParts(tensors, *files);
  PrintTensors(tensors, *files);
  std::cout << "Text: how characters become tokens and back\n" << text.Text();
  return kExitDone;
}

// --- lab_inspect tensors ----------------------------------------------------

int InspectTensors(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::Open(path);
  std::cout << "File      " << PathText(path) << ", "
            << HumanBytes(file.file_bytes())
            << "\nHeader    8 bytes of length, "
            << WithCommas(file.data_start() - 8)
            << " of JSON; the data starts at byte "
            << WithCommas(file.data_start()) << "\n\n";
  if (!file.metadata().empty()) {
    std::cout << "Metadata: notes of whoever wrote the file\n";
    TextTable table("ll");
    for (const auto& [key, value] : file.metadata()) {
      table.Add({Printable(key), Printable(value, 400)});
    }
    std::cout << table.Text() << '\n';
  }
  std::cout << "Tensors: " << file.tensors().size()
            << ", in file order; offsets count from the start of the data\n";
  TextTable table("rrlrl");
  table.Add({"offset", "bytes", "dtype", "shape", "tensor"});
  for (const TensorInfo& tensor : file.tensors()) {
    table.Add({WithCommas(tensor.offset), WithCommas(tensor.bytes.size()),
               std::string(DtypeName(tensor.dtype)), ShapeText(tensor.shape),
               Printable(tensor.name, 200)});
  }
  std::cout << table.Text();
  return kExitDone;
}

// --- lab_inspect tokens, decode, chat ---------------------------------------

Tokenizer LoadTokenizer(const fs::path& directory) {
  CheckDirectory(directory);
  return Tokenizer::Load(directory / "tokenizer.json");
}

/// `text`, or else what is in `text_file`, as tokens.
int InspectTokens(const fs::path& directory, std::optional<std::string> text,
                  const std::string& text_file, bool json) {
  const Tokenizer tokenizer = LoadTokenizer(directory);
  if (!text) text = ReadInput(text_file);
  const std::vector<int> ids = tokenizer.Encode(*text);
  if (json) {
    Json pieces = Json::array();
    for (const int id : ids) pieces.push_back(tokenizer.Piece(id));
    std::cout << Json{{"ids", ids}, {"pieces", pieces}}.dump() << '\n';
    return kExitDone;
  }
  std::cout << CountWithCommas(ids.size(), "token") << " for "
            << CountWithCommas(text->size(), "byte")
            << " of text. A piece is written with one visible letter per "
               "byte,\nso a space shows as \u0120 and a newline as \u010A.\n";
  TextTable table("rrll");
  table.Add({"position", "id", "piece", "text"});
  for (std::size_t i = 0; i < ids.size(); ++i) {
    table.Add({std::to_string(i), std::to_string(ids[i]),
               Printable(tokenizer.Piece(ids[i])),
               Quoted(tokenizer.TokenBytes(ids[i]))});
  }
  std::cout << table.Text();
  return kExitDone;
}

/// "1,2,3" as ids of [0, size). Throws Error (usage).
std::vector<int> ParseIds(std::string_view text, int size) {
  std::vector<int> ids;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    int id = -1;
    const auto [end, error] =
        std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size() || id < 0 ||
        id >= size) {
      FailUsage("--ids: expected ids of 0 to ", size - 1,
                ", separated by commas, found ", Quoted(part));
    }
    ids.push_back(id);
    if (comma == text.size()) return ids;
    text.remove_prefix(comma + 1);
  }
}

int InspectDecode(const fs::path& directory, const std::string& ids) {
  const Tokenizer tokenizer = LoadTokenizer(directory);
  std::cout << ForTerminal(tokenizer.Decode(ParseIds(ids, tokenizer.size())))
            << '\n';
  return kExitDone;
}

/// A list of {"role", "content"}, or an object with such a list as "messages".
std::vector<ChatMessage> ParseMessages(const std::string& text,
                                       const std::string& where) {
  const Json json = ParseJson(text, where);
  const Json* list = &json;
  if (json.is_object()) list = JsonFields(json, where).Find("messages");
  if (list == nullptr || !list->is_array()) {
    Fail(where,
         ": expected a list of messages [{\"role\": ..., \"content\": "
         "...}, ...], found ",
         list == nullptr ? "an object without \"messages\"" : JsonText(*list));
  }
  std::vector<ChatMessage> messages;
  for (const Json& item : *list) {
    const JsonFields fields(item, where,
                            StrCat("message ", messages.size() + 1, ": "));
    ChatMessage message{fields.String("role"), fields.String("content")};
    for (const auto& [key, value] : item.items()) {
      if (key == "reasoning_content") {
        message.reasoning = fields.String(key);
      } else if (key != "role" && key != "content") {
        fields.Refuse(Printable(key), "only role, content, reasoning_content",
                      "this field");
      }
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

int InspectChat(const fs::path& directory, const std::string& messages_file,
                bool thinking, bool json) {
  const Tokenizer tokenizer = LoadTokenizer(directory);
  const ChatTemplate chat = ChatTemplate::Load(directory);
  const std::string where =
      messages_file == "-" ? "standard input" : PathText(messages_file);
  const std::string text =
      chat.Render(ParseMessages(ReadInput(messages_file), where), thinking);
  const std::vector<int> ids = tokenizer.Encode(text);
  if (json) {
    std::cout << Json{{"text", text}, {"ids", ids}}.dump() << '\n';
    return kExitDone;
  }
  std::cout << ForTerminal(text) << "\n\n"
            << CountWithCommas(ids.size(), "token") << ": ";
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::cout << (i > 0 ? "," : "") << ids[i];
  }
  std::cout << '\n';
  return kExitDone;
}

// --- lab_inspect cpu --------------------------------------------------------

/// The CPU's name, nullopt where the system does not tell it.
std::optional<std::string> CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return std::nullopt;
}

bool IsBuilt(Isa isa) {
  const std::span<const Isa> built = BuiltIsas();
  return std::find(built.begin(), built.end(), isa) != built.end();
}

int InspectCpu(bool json) {
  const std::optional<std::string> name = CpuName();
  const int cores = PhysicalCores();
  if (json) {
    Json isas = Json::array();
    for (const Isa isa : KnownIsas()) {
      isas.push_back({{"name", IsaName(isa)},
                      {"built", IsBuilt(isa)},
                      {"runs", CpuHas(isa)}});
    }
    std::cout << Json{{"cpu", name ? Json(*name) : Json()},
                      {"physical_cores", cores},
                      {"isas", isas},
                      {"default_isa", IsaName(BestIsa())}}
                     .dump(-1, ' ', false, Json::error_handler_t::replace)
              << '\n';
    return kExitDone;
  }
  if (name) std::cout << "CPU: " << Printable(*name) << '\n';
  std::cout << "Physical cores: " << cores
            << ", the default of --threads\n\nInstruction sets that --isa "
               "knows; results are the same bits with each\n";
  TextTable table("llll");
  table.Add({"isa", "built in", "runs here", ""});
  for (const Isa isa : KnownIsas()) {
    table.Add({std::string(IsaName(isa)), IsBuilt(isa) ? "yes" : "no",
               CpuHas(isa) ? "yes" : "no",
               isa == BestIsa() ? "the default" : ""});
  }
  std::cout << table.Text();
  return kExitDone;
}

// --- The command line -------------------------------------------------------

struct Options {
  std::string directory = LabModelDirectory().string();
  std::string file;
  std::optional<std::string> text;
  std::string ids;
  bool json = false;
  bool no_thinking = false;
};

ProgramBody Setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  // Not required: the error would name no wrong word that stands in its place.
  app.require_subcommand(0, 1);
  const auto add = [&](const char* name, const char* help) {
    return app.add_subcommand(name, help);
  };
  const auto add_directory = [&](CLI::App* command) {
    command
        ->add_option("DIR", options->directory,
                     "A Hugging Face model directory (default: the lab model)")
        ->type_name("");
  };
  const auto add_json = [&](CLI::App* command) {
    command->add_flag("--json", options->json, "One JSON object for machines");
  };

  CLI::App* model =
      add("model", "What a model is made of: sizes, parts, tensors, tokens");
  add_directory(model);

  CLI::App* tensors = add("tensors", "What is in a safetensors file");
  tensors->add_option("FILE", options->file, "The file")
      ->type_name("")
      ->required();

  CLI::App* tokens = add("tokens", "The tokens of a text");
  add_directory(tokens);
  CLI::Option* text = tokens->add_option("--text", options->text, "The text")
                          ->type_name("TEXT");
  CLI::Option* text_file =
      tokens
          ->add_option("--text-file", options->file,
                       "A file with the text, UTF-8 (- for standard input)")
          ->type_name("FILE")
          ->excludes(text);
  add_json(tokens);

  CLI::App* decode = add("decode", "The text of tokens");
  add_directory(decode);
  decode->add_option("--ids", options->ids, "Token ids: 1,2,3")
      ->type_name("LIST")
      ->required();

  CLI::App* chat =
      add("chat", "The prompt that a conversation becomes, up to the answer");
  add_directory(chat);
  chat->add_option("--messages", options->file,
                   "JSON: [{\"role\": \"user\", \"content\": \"Hi\"}, ...] (- "
                   "for standard input)")
      ->type_name("FILE")
      ->required();
  chat->add_flag("--no-thinking", options->no_thinking,
                 "Qwen3: begin the answer after an empty <think> block");
  add_json(chat);

  CLI::App* cpu = add("cpu", "What this CPU can run: instruction sets, cores");
  add_json(cpu);

  return [=]() -> int {
    const fs::path directory = options->directory;
    if (model->parsed()) return InspectModel(directory);
    if (tensors->parsed()) return InspectTensors(options->file);
    if (tokens->parsed()) {
      if (text->empty() && text_file->empty()) {
        FailUsage("tokens: expected --text or --text-file, found neither");
      }
      return InspectTokens(directory, options->text, options->file,
                           options->json);
    }
    if (decode->parsed()) return InspectDecode(directory, options->ids);
    if (chat->parsed()) {
      return InspectChat(directory, options->file, !options->no_thinking,
                         options->json);
    }
    if (cpu->parsed()) return InspectCpu(options->json);
    FailUsage(
        "expected model, tensors, tokens, decode, chat or cpu, found "
        "nothing (see lab_inspect --help)");
  };
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::RunProgram(argc, argv, "lab_inspect",
                           "A first look at what a language model is made of.",
                           kvlab::Setup);
}
