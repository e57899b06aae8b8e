// The live page of a model of images: what is dropped or chosen goes to the server, whose page is shown below.

const [drop, file, text, frame, problem, progress] = ["drop", "file", "text", "shown", "problem", "progress"].map((id) => document.getElementById(id));
let chosen;
let asking = new AbortController();

async function ask() {
  if (!chosen) return;
  asking.abort();
  const mine = asking = new AbortController();
  progress.hidden = false;
  try {
    const token = new URLSearchParams(location.search).get("token");
    const headers = { "Content-Type": "application/octet-stream", ...(token && { "X-Normscope-Token": token }) };
    const query = new URLSearchParams({ name: chosen.name, text: text?.value ?? "" });
    const response = await fetch(`image?${query}`, { method: "POST", headers, body: chosen, signal: mine.signal });
    if (!response.ok) throw new Error((await response.json()).error ?? "The server stops.");
    frame.srcdoc = await response.text();
    frame.hidden = false;
    problem.hidden = true;
  } catch (error) {
    if (error.name === "AbortError") return;
    problem.textContent = error.message;
    problem.hidden = false;
  }
  progress.hidden = true;
}

function choose(given) {
  chosen = given ?? chosen;
  ask();
}

file.onchange = () => choose(file.files[0]);
if (text) text.onchange = ask;
for (const name of ["dragenter", "dragover"]) addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
addEventListener("dragleave", () => drop.classList.remove("over"));
addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); choose(event.dataTransfer.files[0]); });
