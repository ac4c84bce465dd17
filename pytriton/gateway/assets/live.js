// The live page: the figures of all models, each with a form that sends a request.
"use strict";

const PERIOD_MS = 2000;
const cards = new Map(); // by the model's name

const number = (value, unit = "") => (value === null || value === undefined ? "–" : `${value}${unit}`);

function figures(model) {
  const latency = model.latency_ms;
  const sizes = Object.entries(model.batch_sizes).map(([size, count]) => `${size} (${count}×)`);
  return {
    "Requests": `${model.requests_per_s} per second, ${model.requests} in all, ${model.failed} failed`,
    "Latency": `p50 ${number(latency.p50, " ms")}, p95 ${number(latency.p95, " ms")}, p99 ${number(latency.p99, " ms")}`,
    "Batch sizes": sizes.join(", ") || "–",
    "Time in the queue": number(model.queue_ms, " ms"),
    "Instances": `${number(model.instances)}, restarted ${number(model.restarts)} times`,
    "Versions": model.versions.join(", "),
  };
}

function show(model) {
  if (!cards.has(model.name)) cards.set(model.name, makeCard(model));
  const card = cards.get(model.name);
  const list = card.querySelector("dl");
  list.replaceChildren();
  for (const [name, value] of Object.entries(figures(model))) {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    list.append(term, detail);
  }
  const errors = model.errors.map((error) => {
    const item = document.createElement("li");
    item.textContent = `${new Date(error.at * 1000).toLocaleTimeString()} (${error.status}): ${error.message}`;
    return item;
  });
  card.querySelector(".errors").replaceChildren(...errors);
}

function makeCard(model) {
  const card = document.getElementById("model").content.cloneNode(true).querySelector("article");
  card.id = `model-${model.name}`;
  card.querySelector("h2").textContent = model.name;
  card.querySelector(".description").textContent = model.description;
  const inputs = card.querySelector(".inputs");
  for (const input of model.inputs) inputs.append(makeInput(input));
  const form = card.querySelector("form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(model, form).catch((error) => {
      form.querySelector("output").textContent = String(error);
    });
  });
  document.getElementById("models").append(card);
  return card;
}

function example(input) {
  let value = input.datatype === "BOOL" ? true : 1;
  if (input.shape.length === 1 && input.shape[0] === 1) return JSON.stringify(value);
  for (const size of [...input.shape].reverse()) value = Array(size < 0 ? 3 : Math.min(size, 8)).fill(value);
  return JSON.stringify(value);
}

function makeInput(input) {
  const label = document.createElement("label");
  label.textContent = `${input.name}: ${input.datatype} [${input.shape.join(", ")}]${input.optional ? ", optional" : ""}`;
  const field = document.createElement("textarea");
  field.rows = 2;
  field.name = input.name;
  field.dataset.datatype = input.datatype;
  if (!input.optional && input.datatype !== "BYTES") field.value = example(input);
  label.append(field);
  if (input.datatype === "BYTES") {
    const file = document.createElement("input");
    const preview = document.createElement("div");
    file.type = "file";
    file.name = `${input.name} as a file`;
    if (input.media_type) {
      file.accept = input.media_type;
      field.hidden = true;
    }
    file.addEventListener("change", async () => {
      const [chosen] = file.files;
      preview.replaceChildren(...(chosen ? [makeMedia(chosen.type, await base64Of(chosen))].filter(Boolean) : []));
    });
    label.append(file, preview);
  }
  return label;
}

// Returns an element that shows an image, or plays audio or video; null for anything else.
function makeMedia(type, base64) {
  const tag = { image: "img", audio: "audio", video: "video" }[type.split("/")[0]];
  if (!tag) return null;
  const media = document.createElement(tag);
  if (tag !== "img") media.controls = true;
  media.src = `data:${type};base64,${base64}`;
  return media;
}

// Shows the outputs that are images, audio or video below the JSON, in which they are shortened.
function showMedia(model, output) {
  let sample;
  try {
    sample = JSON.parse(output.textContent);
  } catch {
    return; // a stream
  }
  const shown = [];
  for (const { name, media_type: type } of model.outputs) {
    if (!type || typeof sample[name] !== "string") continue;
    const media = makeMedia(type, sample[name]);
    if (!media) continue;
    shown.push(media);
    sample[name] = `${sample[name].slice(0, 20)}…`;
  }
  if (shown.length === 0) return;
  output.textContent = JSON.stringify(sample);
  output.append(...shown);
}

async function base64Of(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return url.slice(url.indexOf(",") + 1);
}

async function sampleOf(form) {
  const sample = {};
  for (const field of form.querySelectorAll("textarea")) {
    const file = field.parentElement.querySelector("input[type=file]")?.files[0];
    if (file) sample[field.name] = { b64: await base64Of(file) };
    else if (field.dataset.datatype === "BYTES") {
      const isList = field.value.trim().startsWith("[");
      if (field.value !== "") sample[field.name] = isList ? JSON.parse(field.value) : field.value;
    } else if (field.value.trim() !== "") sample[field.name] = JSON.parse(field.value);
  }
  return sample;
}

async function send(model, form) {
  const output = form.querySelector("output");
  output.textContent = "";
  const response = await fetch(`v1/models/${encodeURIComponent(model.name)}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...apiKey.headers() },
    body: JSON.stringify(await sampleOf(form)),
  });
  output.className = response.ok ? "" : "failed";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    output.textContent += value; // a stream appears as it arrives
  }
  showMedia(model, output);
}

async function load() {
  const response = await fetch("status", { headers: apiKey.headers() });
  if (!response.ok) return response;
  const status = await response.json();
  document.getElementById("server").textContent =
    `Triton ${status.server.version}, restarted ${status.server.restarts} times`;
  status.models.forEach(show);
  const names = new Set(status.models.map((model) => model.name));
  for (const [name, card] of cards) {
    if (names.has(name)) continue;
    card.remove();
    cards.delete(name);
  }
  setTimeout(refresh, PERIOD_MS);
  return response;
}

function refresh() {
  withKey(load).catch(() => {
    document.getElementById("server").textContent = "The server does not respond.";
    setTimeout(refresh, PERIOD_MS);
  });
}

refresh();
