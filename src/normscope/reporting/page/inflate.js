// What a page keeps compressed: base64 of zlib's format, which browsers inflate themselves.
async function inflated(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const { readable, writable } = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  writer.write(bytes);
  writer.close();
  return new Uint8Array(await new Response(readable).arrayBuffer());
}

const inflatedText = async (id) => new TextDecoder().decode(await inflated(document.getElementById(id).textContent));
