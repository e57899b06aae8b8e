// What a page keeps compressed: base64 of zlib's format, which browsers inflate themselves.
async function inflated(packed) {
  const letters = atob(packed);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = letters.charCodeAt(at); // several times as fast as Uint8Array.from
  const { readable, writable } = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  writer.write(bytes);
  writer.close();
  return new Uint8Array(await new Response(readable).arrayBuffer());
}

const inflatedText = async (id) => new TextDecoder().decode(await inflated(document.getElementById(id).textContent));
