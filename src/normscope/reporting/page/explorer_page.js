// A page with nothing but the explorer. In a notebook it is a sandboxed frame, so it keeps nothing in its address.
unpackData(JSON.parse(document.getElementById("explorer-data").textContent))
  .then((data) => new Explorer(document.getElementById("explorer-root"), data));
