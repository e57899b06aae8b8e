// Search from `file://`, where browsers refuse to start a worker: its script runs in a hidden frame instead. The theme's offline
// plugin would load such a script from elsewhere; a script whose name contains "iframe-worker" takes its place (mkdocs.yml).
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.ready = new Promise((resolve) => { frame.started = resolve; });
      frame.answered = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const page = frame.contentDocument;
      page.open();
      page.write(`<script>window.postMessage = (data) => frameElement.answered(data); window.importScripts = () => {};<\/script><script src="${url}" onload="frameElement.started()"><\/script>`);
      page.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement?.remove();
    }
  };
}
