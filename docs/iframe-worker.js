// Search from the disk: browsers start no worker from a file, so a hidden frame takes its place. Material for MkDocs
// looks for the name IFrameWorker; its plugin "offline" would load such a script from the network on every page.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          Object.assign(script, { src: source, onload: resolve, onerror: reject });
          inside.document.body.append(script);
        });
      inside.importScripts = (...urls) => urls.reduce((done, one) => done.then(() => load(one)), Promise.resolve());
      this.ready = load(new URL(url, location.href).href);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
